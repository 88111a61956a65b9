"""What a compiled program does on each device: FLOPs, bytes of memory, collectives."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from mtf.plan.hlo import Array, Computation, Instruction, Module

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("ragged-all-to-all", "collective-permute", "collective-broadcast"),
)
_GEMM = re.compile(r'custom_call_target="__(?:cublas|onednn)\$')
# These read and write nothing themselves.
_FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "domain", "iota"),
}
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATE = "dynamic-update-slice"
_FREE_CALLS = re.compile('custom_call_target="(AllocateBuffer|ConcatBitcast|Assume)')


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind over the same mesh axes, in a whole step.

    Attributes:
      kind: such as "all-reduce".
      axes: the mesh axes of its groups, such as "data" or "data+model".
      group: number of devices of a group.
      hosts: number of hosts over which a group is spread.
      times: number of collectives in a step.
      operand_bytes: bytes of a device's operands, for all of them together.
    """

    kind: str
    axes: str
    group: int
    hosts: int
    times: float
    operand_bytes: float

    @property
    def whole_bytes(self) -> float:
        """The bytes of the operands of a group, or for all-reduce of one of its devices."""
        return self.operand_bytes * (self.group if self.kind == "all-gather" else 1)

    @property
    def sent_bytes(self) -> float:
        """The bytes that each device sends at least (a ring does so)."""
        if "permute" in self.kind or "broadcast" in self.kind:
            return self.operand_bytes
        passes = 2 if self.kind == "all-reduce" else 1
        return passes * self.whole_bytes * (self.group - 1) / self.group

    @property
    def network_bytes(self) -> float:
        """The bytes that each device sends at least to other hosts, if they share this evenly."""
        if self.hosts == 1:
            return 0.0
        if "permute" in self.kind or "broadcast" in self.kind:
            return self.operand_bytes
        passes = 2 if self.kind == "all-reduce" else 1
        per_host = self.group / self.hosts
        return passes * self.whole_bytes * (self.hosts - 1) / self.hosts / per_host


def flops(module: Module) -> float:
    """Returns the FLOPs of all matrix products of a device, each as often as it runs."""
    return sum(
        times * _product_flops(each, computation)
        for computation, times in module.running()
        for computation, each in _with_fused(module, computation)
    )


def _with_fused(
    module: Module, computation: Computation
) -> Sequence[tuple[Computation, Instruction]]:
    """Returns the instructions of a computation, also those in its fusions."""
    found, todo = [], [computation]
    while todo:
        inner = todo.pop()
        for each in inner.values():
            found.append((inner, each))
            fused = module.fused(each)
            if fused is not None:
                todo.append(fused)
    return found


def _product_flops(each: Instruction, computation: Computation) -> float:
    if each.opcode == "convolution":
        return _convolution_flops(each, computation)
    if each.opcode == "dot":
        dims = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)
        contracted = dims[1].split(",") if dims else []
    elif each.opcode == "custom-call" and _GEMM.search(each.attributes):
        listed = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', each.attributes)
        contracted = json.loads(listed[1]) if listed else []
    else:
        return 0.0
    left = _operand(each, computation, 0).shape
    return 2.0 * math.prod(each.arrays[0].shape) * math.prod(left[int(dim)] for dim in contracted)


def _operand(each: Instruction, computation: Computation, number: int) -> Array:
    return computation[each.operands[number]].arrays[0]


def _convolution_flops(each: Instruction, computation: Computation) -> float:
    """Returns the FLOPs of a convolution, to which TPUs turn products; not those of padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
    assert labels is not None, each.attributes
    shapes = (*(_operand(each, computation, i).shape for i in (0, 1)), each.arrays[0].shape)
    inputs, kernel, output = (
        dict(zip(text, shape, strict=True))
        for text, shape in zip(labels.groups(), shapes, strict=True)
    )
    groups = re.search(r"batch_group_count=(\d+)", each.attributes)
    window = _window(each.attributes)
    positions = math.prod(
        _valid_positions(inputs[dim], kernel[dim], output[dim], window, int(dim))
        for dim in kernel
        if dim.isdigit()
    )
    products = output["b"] * output["f"] * kernel["i"] * positions
    return 2.0 * products / (int(groups[1]) if groups else 1)


def _window(attributes: str) -> Mapping[str, Sequence[str]]:
    found = re.search(r"window=\{([^}]*)\}", attributes)
    fields = (field.split("=") for field in (found[1].split() if found else ()))
    return {name: value.split("x") for name, value in fields}


def _valid_positions(
    size: int, kernel: int, output: int, window: Mapping[str, Sequence[str]], dim: int
) -> int:
    """Returns the number of products along a dimension whose input is not padding or a gap."""

    def field(name: str, default: str) -> str:
        return window[name][dim] if name in window else default

    low = int(field("pad", "0_0").split("_")[0])
    starts = np.arange(output) * int(field("stride", "1")) - low
    places = starts[:, None] + np.arange(kernel) * int(field("rhs_dilate", "1"))
    step = int(field("lhs_dilate", "1"))
    valid = (places >= 0) & (places <= (size - 1) * step) & (places % step == 0)
    return int(valid.sum())


def moved_bytes(module: Module) -> float:
    """Returns the bytes that a device reads from and writes to its main memory.

    Each fusion reads its operands and writes its result; of an operand of which it takes a slice,
    only the slice counts, and of one that it updates in place only the update.
    """
    return sum(
        times * _instruction_bytes(module, each, computation)
        for computation, times in module.running()
        for each in computation.values()
    )


def _instruction_bytes(module: Module, each: Instruction, computation: Computation) -> float:
    is_free_call = each.opcode == "custom-call" and _FREE_CALLS.search(each.attributes)
    if each.opcode in _FREE or each.opcode.endswith("-done") or is_free_call:
        return 0.0
    operands = [computation[name] for name in each.operands if name in computation]
    if each.opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
        source, moved = each.arrays[:2]
        return float(moved.num_bytes * ((source.space == 0) + (moved.space == 0)))
    fused = module.fused(each)
    if fused is not None:
        return _fusion_bytes(module, each, fused, operands)
    if each.opcode == _UPDATE:
        return 2.0 * _main_bytes(operands[1].arrays)
    written = _main_bytes(each.arrays[:1] if each.opcode.endswith("-start") else each.arrays)
    if each.opcode in _SLICES:
        return 2.0 * written
    return written + sum(_main_bytes(operand.arrays) for operand in operands)


def _main_bytes(arrays: Sequence[Array]) -> float:
    return float(sum(array.num_bytes for array in arrays if array.space == 0))


def _fusion_bytes(
    module: Module, each: Instruction, fused: Computation, operands: Sequence[Instruction]
) -> float:
    parameters = [inner for inner in fused.values() if inner.opcode == "parameter"]
    updated = {inner.operands[0]: inner for inner in fused.values() if inner.opcode == _UPDATE}
    total = 0.0
    for parameter in parameters:
        place = int(parameter.argument)
        if parameter.name in updated or place >= len(operands):
            continue  # Updated in place.
        if any(array.space == 0 for array in operands[place].arrays):
            total += _read_bytes(module, fused, parameter)
    whole = {update.arrays[0].shape for update in updated.values()}
    total += _main_bytes([array for array in each.arrays if array.shape not in whole])
    return total + sum(fused[x.operands[1]].arrays[0].num_bytes for x in updated.values())


def _read_bytes(module: Module, fused: Computation, source: Instruction) -> float:
    """Returns the bytes that a fusion reads of one of its arrays: all, or slices of it."""
    whole, total = source.arrays[0].num_bytes, 0.0
    for user in fused.values():
        if source.name not in user.operands:
            continue
        inner = module.fused(user)
        if user.opcode in _SLICES:
            total += user.arrays[0].num_bytes
        elif user.opcode == "bitcast":
            total += _read_bytes(module, fused, user)
        elif inner is not None:
            place = str(user.operands.index(source.name))
            parameter = next(
                x for x in inner.values() if x.opcode == "parameter" and x.argument == place
            )
            total += _read_bytes(module, inner, parameter)
        else:
            return float(whole)
    return min(total, float(whole))


def collectives(
    module: Module, mesh: Mapping[str, int], host_of: Sequence[int]
) -> list[Collective]:
    """Returns the collectives of a step by kind and mesh axes, those that send most first.

    `mesh` is axis → size; `host_of` has the host of each device in the order of the mesh.
    """
    found: dict[tuple[str, str, int, int], tuple[float, float]] = {}
    for outer, times in module.running():
        for computation, each in _with_fused(module, outer):
            kind = each.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            in_fusion = computation is not outer
            if kind == "all-reduce" and in_fusion and _keeps_slice(computation, each):
                kind = "reduce-scatter"  # as TPUs write it
            operands = [computation[name] for name in each.operands if name in computation]
            size = sum(array.num_bytes for operand in operands for array in operand.arrays)
            group = _group(each.attributes, len(host_of))
            key = kind, _axes(group, mesh), len(group), len({host_of[i] for i in group})
            before = found.get(key, (0.0, 0.0))
            found[key] = before[0] + times, before[1] + times * size
    rows = [Collective(*key, *value) for key, value in found.items() if key[2] > 1]
    return sorted(rows, key=lambda row: -row.sent_bytes)


def _keeps_slice(fused: Computation, reduced: Instruction) -> bool:
    """Returns whether a fusion takes only a slice of what it reduces."""
    users = [user for user in fused.values() if reduced.name in user.operands]
    return bool(users) and all(user.opcode == "dynamic-slice" for user in users)


def _group(attributes: str, num_devices: int) -> list[int]:
    """Returns the devices of the first group of a collective."""
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", attributes)
    if pairs:
        # All devices take part; the first pair shows the axes.
        return sorted({int(pairs[1]), int(pairs[2])})
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return [int(number) for number in listed[1].split(",")]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        shape, order, axes = (
            [int(n) for n in text.split(",")] if text else None for text in iota.groups()
        )
        assert shape is not None and order is not None
        return np.arange(num_devices).reshape(order).transpose(axes).reshape(shape)[0].tolist()
    named = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?)\))? *\{([^}]*)\}", attributes
    )
    if named:
        return _named_group(named[1], named[2], re.findall(r"'([^']+)'", named[3]))
    return list(range(num_devices))


def _named_group(mesh: str, ids: str | None, over: Sequence[str]) -> list[int]:
    axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    numbers = np.arange(math.prod(axes.values()))
    order = re.search(r"\[([\d,]+)\]T\(([\d,]+)\)", ids or "")
    if order:
        shape, axes_order = ([int(n) for n in text.split(",")] for text in order.groups())
        numbers = numbers.reshape(shape).transpose(axes_order)
    grid = numbers.reshape(tuple(axes.values()))
    group: list[int] = (
        grid[tuple(slice(None) if name in over else 0 for name in axes)].reshape(-1).tolist()
    )
    return group


def _axes(group: Sequence[int], mesh: Mapping[str, int]) -> str:
    """Returns the mesh axes along which the devices of a group differ."""
    places = np.array(np.unravel_index(list(group), tuple(mesh.values())))
    differ = (places != places[:, :1]).any(axis=1)
    return "+".join(name for name, differs in zip(mesh, differ, strict=True) if differs) or "-"
