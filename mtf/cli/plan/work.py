"""Computes the FLOPs, memory traffic and collectives of a compiled program from its HLO."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf.cli.plan.hlo import Array, Computation, Instruction, numbers, running
from mtf.partitioning.chips import Chip

_COLLECTIVES = ("all-", "reduce-scatter", "ragged-all-to-all", "collective-")
# The opcodes of instructions that neither read nor write memory.
_FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "domain", "iota"),
}
_FREE_CALLS = ('"AllocateBuffer', '"ConcatBitcast', '"Assume')
_PREFETCHES = ("copy-start", "slice-start", "dynamic-slice-start")
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATE = "dynamic-update-slice"
_KEYS = ("kind", "axes", "group", "hosts")
_SIZES = ("times", "operand_bytes", "sent_bytes", "network_bytes")
# cuDNN's attention has this number of matrix products of the size of its logits.
_ATTENTION_PRODUCTS = {False: 2, True: 5}  # forward, backward


def measure(
    program: Computation, mesh: Mapping[str, int], host_of: Sequence[int], chip: Chip | None
) -> dict[str, Any]:
    """Returns the work of each device in one run of a program, including all iterations of loops.

    `mesh` maps the mesh axes to their sizes, and `host_of` contains the host of each device in the
    order of the mesh.

    Collectives of the same kind over the same mesh axes are combined in one row. The rows are
    sorted by `sent_bytes`, the minimum number of bytes that a device must send; `network_bytes` of
    these bytes go to other hosts. If `chip` is given, the result also contains `times`, in seconds.
    `at_least` is a lower bound. It assumes that operations run one after another, and that FLOPs,
    memory or collectives limit each of them. Asynchronous collectives overlap with operations, and
    so do prefetches while the memory is idle.
    `estimate` is XLA's estimate, or None if there is none; to operations for which XLA has none, it
    adds the time in `at_least`. `by_part` contains the total time for FLOPs, memory, interconnect
    and network.
    """
    flops = padded = moved = in_turn = prefetching = idle = estimated = 0.0
    has_cycles = False
    rows: dict[tuple[Any, ...], np.ndarray] = collections.defaultdict(lambda: np.zeros(4))
    for each, times in running(program):
        width = chip.matrix_unit if chip else 1
        busy = sum(_product_flops(inner, width) for inner in _inside(each))
        bytes_, waited = _moved_bytes(each), np.zeros(4)
        for inner in _inside(each):
            flops += times * _product_flops(inner)
            if inner.opcode.startswith(_COLLECTIVES) and not inner.opcode.endswith("-done"):
                key, sizes = _collective(inner, inner is not each, mesh, host_of)
                rows[key] += times * sizes
                waited += 0 if each.opcode.endswith("-start") else sizes
        padded, moved = padded + times * busy, moved + times * bytes_
        if chip is None:
            continue
        parts = _seconds(chip, busy, bytes_, waited)
        if each.opcode in _PREFETCHES:
            prefetching += times * parts["memory"]
            continue
        seconds = max(parts.values())
        in_turn += times * seconds
        idle += times * (seconds - parts["memory"])
        cycles = int(each.backend_config.get("window_config", {}).get("estimated_cycles", 0))
        has_cycles |= cycles > 0
        estimated += times * (cycles / chip.clock if cycles and chip.clock else seconds)
    found: dict[str, Any] = {"flops": flops, "moved_bytes": moved}
    order = sorted((row for row in rows.items() if row[0][2] > 1), key=lambda row: -row[1][2])
    found["collectives"] = [
        dict(zip((*_KEYS, *_SIZES), (*key, *map(float, sizes)), strict=True))
        for key, sizes in order
    ]
    if chip is not None:
        by_part = _seconds(chip, padded, moved, sum(rows.values(), np.zeros(4)))
        found["times"] = {
            "at_least": max(
                in_turn + max(0, prefetching - idle),
                by_part["interconnect"],
                by_part.get("network", 0),
            ),
            "estimate": estimated if has_cycles and chip.clock else None,
            "by_part": by_part,
        }
    return found


def _seconds(chip: Chip, flops: float, moved: float, sizes: np.ndarray) -> dict[str, float]:
    """Returns the time for each part of a device's work; `sizes` contains the totals for _SIZES."""
    # GPUs send data to other hosts over the network, not over the links within a host.
    number, _, sent, network = sizes
    network = network if chip.network else 0
    seconds = {
        "FLOPs": chip.devices * flops / chip.peak_flops,
        "memory": chip.devices * moved / chip.memory_bandwidth,
        "interconnect": chip.devices * (sent - network) / chip.interconnect + number * chip.latency,
    }
    if chip.network:
        seconds["network"] = chip.devices * network / chip.network
    return {name: float(value) for name, value in seconds.items()}


def _inside(each: Instruction) -> Iterator[Instruction]:
    """Yields an instruction and, if it is a fusion, the instructions inside it."""
    yield each
    for inner in each.fused:
        yield from _inside(inner)


def _product_flops(each: Instruction, width: int = 1) -> float:
    """Returns the FLOPs of a matrix product, convolution or kernel; 0 for other instructions.

    Matrices are padded for a matrix unit of (width, width), so that the FLOPs at the peak take the
    time of the product. The unit holds a tile of one matrix and takes a row of the other at a time.
    It loads tiles while it multiplies, but as slowly as it takes `width` rows (Jouppi et al. 2017,
    arxiv.org/abs/1704.04760, section 2).
    """
    config = each.backend_config
    if each.opcode == "custom-call" and "cost_estimate" in config.get("custom_call_config", {}):
        return float(config["custom_call_config"]["cost_estimate"]["flops"])  # a Pallas kernel
    if each.opcode == "custom-call" and "cudnn_fmha_backend_config" in config:
        logits = config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"]
        products = _ATTENTION_PRODUCTS["Backward" in each.attributes["custom_call_target"]]
        return 2.0 * products * math.prod(map(int, logits)) * each.operands[0].arrays[0].shape[-1]
    batch, rows, columns, depth = _product_sizes(each)

    def tiles(size: float) -> float:
        return math.ceil(size / width) * width

    tiled = (max(rows, width) * tiles(columns), tiles(rows) * max(columns, width))
    return 2.0 * batch * tiles(depth) * min(tiled)


def _product_sizes(each: Instruction) -> tuple[float, float, float, float]:
    """Returns the sizes of a product: batch, rows, columns and depth (all 0 for other operations).

    The product multiplies `batch` matrices of (rows, depth) with as many of (depth, columns).
    """
    batch = 1.0
    if each.opcode == "convolution":
        depth = _convolution_products(each) / math.prod(each.arrays[0].shape)
        if "lhs_dilate" in each.attributes.get("window", ""):  # a product of a batch of matrices
            output = each.attributes["dim_labels"].rpartition("->")[2]
            sizes = zip(output, each.arrays[0].shape, strict=True)
            batch = float(math.prod(size for name, size in sizes if name.isdigit()))
    elif each.opcode == "dot":
        left = each.operands[0].arrays[0].shape
        depth = _sizes(left, each.attributes.get("lhs_contracting_dims", ""))
        batch = _sizes(left, each.attributes.get("lhs_batch_dims", ""))
    elif each.opcode == "custom-call" and "gemm_backend_config" in each.backend_config:
        dims = each.backend_config["gemm_backend_config"]["dot_dimension_numbers"]
        left = each.operands[0].arrays[0].shape
        depth = _sizes(left, " ".join(dims["lhs_contracting_dimensions"]))
        batch = _sizes(left, " ".join(dims.get("lhs_batch_dimensions", ())))
    else:
        return 0, 0, 0, 0
    columns = math.prod(each.operands[1].arrays[0].shape) / (batch * depth)
    return batch, math.prod(each.arrays[0].shape) / (batch * columns), columns, depth


def _sizes(shape: Sequence[int], dims: str) -> float:
    return float(math.prod(shape[dim] for dim in numbers(dims)))


def _convolution_products(each: Instruction) -> float:
    """Returns the number of products in a convolution, excluding those with padding.

    On TPUs, matrix products are convolutions as well.
    """
    shapes = [operand.arrays[0].shape for operand in (*each.operands, each)]
    labels = re.split("_|->", each.attributes["dim_labels"])
    inputs, kernel, output = (
        dict(zip(text, shape, strict=True)) for text, shape in zip(labels, shapes, strict=True)
    )
    fields = each.attributes.get("window", "").strip("{}").split()
    window = {name: text.split("x") for name, text in (field.split("=") for field in fields)}
    products = output["b"] * output["f"] * kernel["i"]
    for dim in filter(str.isdigit, kernel):
        at = {name: values[int(dim)] for name, values in window.items()}
        stride, gap, step = (int(at.get(x, 1)) for x in ("stride", "rhs_dilate", "lhs_dilate"))
        index = np.add.outer(np.arange(output[dim]) * stride, np.arange(kernel[dim]) * gap)
        index -= int(at.get("pad", "0_0").split("_")[0])
        valid = (index >= 0) & (index <= (inputs[dim] - 1) * step) & (index % step == 0)
        products *= int(valid.sum())
    return products / int(each.attributes.get("batch_group_count", 1))


def _moved_bytes(each: Instruction) -> float:
    """Returns the number of bytes that an instruction reads from and writes to main memory.

    A fusion reads its operands and writes its result. If it slices an operand, only the slice
    counts; if it updates an operand in place, only the update counts.
    """
    is_free_call = each.attributes.get("custom_call_target", "").startswith(_FREE_CALLS)
    if each.opcode in _FREE or each.opcode.endswith("-done") or is_free_call:
        return 0.0
    cost = each.backend_config.get("custom_call_config", {}).get("cost_estimate", {})
    if "bytes_accessed" in cost:
        return float(cost["bytes_accessed"])
    if each.opcode in _PREFETCHES:
        source, moved = each.arrays[:2]
        return float(moved.num_bytes * (source.in_main_memory + moved.in_main_memory))
    if each.opcode == "fusion":
        return _fusion_bytes(each)
    if each.opcode == _UPDATE:
        return 2.0 * _size(each.operands[1].arrays)
    written = _size(each.arrays[:1] if each.opcode.endswith("-start") else each.arrays)
    read = sum(_size(operand.arrays) for operand in each.operands)
    return written + (written if each.opcode in _SLICES else read)


def _size(arrays: Sequence[Array]) -> float:
    return float(sum(array.num_bytes for array in arrays if array.in_main_memory))


def _fusion_bytes(fusion: Instruction) -> float:
    updates = [each for each in fusion.fused if each.opcode == _UPDATE]
    updated = {each.operands[0] for each in updates}
    whole = {each.arrays[0].shape for each in updates}
    total = _size([array for array in fusion.arrays if array.shape not in whole])
    total += sum(each.operands[1].arrays[0].num_bytes for each in updates)
    for operand, parameter in zip(fusion.operands, _parameters(fusion), strict=True):
        if parameter not in updated and any(array.in_main_memory for array in operand.arrays):
            total += _read_bytes(parameter)
    return total


def _parameters(fusion: Instruction) -> list[Instruction]:
    parameters = (each for each in fusion.fused if each.opcode == "parameter")
    return sorted(parameters, key=lambda each: int(each.argument))


def _read_bytes(source: Instruction) -> float:
    """Returns the number of bytes that a fusion reads from an array or from slices of the array."""
    whole, total = float(source.arrays[0].num_bytes), 0.0
    for user in source.users:
        if user.opcode in _SLICES:
            total += user.arrays[0].num_bytes
        elif user.opcode == "bitcast":
            total += _read_bytes(user)
        elif user.opcode == "fusion":
            total += _read_bytes(_parameters(user)[user.operands.index(source)])
        else:
            return whole
    return min(total, whole)


def _collective(
    each: Instruction, is_fused: bool, mesh: Mapping[str, int], host_of: Sequence[int]
) -> tuple[tuple[str, str, int, int], np.ndarray]:
    """Returns the values of _KEYS and the values of _SIZES for a collective."""
    kind, group = each.opcode.removesuffix("-start"), _group(each.attributes, len(host_of))
    if kind == "all-reduce" and is_fused and {x.opcode for x in each.users} == {"dynamic-slice"}:
        kind = "reduce-scatter"  # On TPUs, a reduce-scatter is compiled to this fusion.
    size = float(sum(array.num_bytes for operand in each.operands for array in operand.arrays))
    hosts = len({host_of[device] for device in group})
    if "permute" in kind or "broadcast" in kind:
        sent, network = size, size if hosts > 1 else 0.0
    else:
        share = size * {"all-reduce": 2, "all-gather": len(group)}.get(kind, 1) / len(group)
        sent, network = share * (len(group) - 1), share * (hosts - 1)
    places = np.array(np.unravel_index(group, tuple(mesh.values())))
    differ = (places != places[:, :1]).any(axis=1)
    axes = "+".join(name for name, differs in zip(mesh, differ, strict=True) if differs)
    return (kind, axes, len(group), hosts), np.array([1, size, sent, network])


def _group(attributes: Mapping[str, str], num_devices: int) -> list[int]:
    """Returns the devices in the first group or the first pair of a collective."""
    groups = attributes.get("source_target_pairs") or attributes.get("replica_groups", "")
    if groups.startswith("{{"):  # All groups or pairs span the same mesh axes.
        return sorted(numbers(groups.partition("}")[0]))
    if "<=" in groups:  # such as [2,4]<=[4,2]T(1,0)
        shape, _, order = groups.partition("<=")
        return list(map(int, _iota(order).reshape(numbers(shape))[0]))
    if groups.startswith("mesh"):  # such as mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}
        axes = dict(re.findall(r"'([^']+)'=(\d+)", groups))
        devices = _iota(attributes.get("device_ids", ",".join(axes.values())))
        grid = devices.reshape([int(size) for size in axes.values()])
        over = re.findall(r"'([^']+)'", attributes["mesh_axes"])
        index = tuple(slice(None) if name in over else 0 for name in axes)
        return list(map(int, grid[index].reshape(-1)))
    return list(range(num_devices))


def _iota(text: str) -> np.ndarray:
    """Returns device ids in the order that a text such as `[4,2]T(1,0)` describes."""
    shape, _, axes = text.partition("T")
    sizes = numbers(shape)
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(numbers(axes) or range(len(sizes)))
