"""Shows how a run's parameters are split over its mesh (`--print sharding`)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import jax

from mtf.checkpoints.finite import flat_names
from mtf.host_memory import gib
from mtf.models import t5
from mtf.models.stacking import unstacked_names
from mtf.partitioning import memory
from mtf.training.trainer import Trainer
from mtf.training.transformations import owner_of

# A whole parameter on every device is worth a remark from this share of all parameters on.
_LARGE = 0.01


@dataclasses.dataclass(frozen=True)
class Row:
    """A parameter.

    Attributes:
      name: T5X's name; `layers` stands for all layers of a stack, which are one array.
      shape: its sizes.
      axes: logical axes of its dimensions.
      spec: mesh axes over which each dimension is split; "-": none.
      whole: bytes of the parameter.
      part: bytes of one device's part.
      slots: bytes of one device's part of the optimizer state.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    spec: tuple[str, ...]
    whole: int
    part: int
    slots: int


def rows(trainer: Trainer) -> list[Row]:
    """Returns a row for each array of parameters in memory; allocates nothing."""
    shapes, shardings = trainer.state_shapes, trainer.state_shardings
    slots = _slot_bytes(trainer)
    found = []
    for path, shape in jax.tree_util.tree_leaves_with_path(shapes.params):
        keys = [entry.key for entry in path]
        axes: Any = trainer.axes
        sharding: Any = shardings.params
        for key in keys:
            axes, sharding = axes[key], sharding[key]
        spec = [*sharding.spec, *(None,) * (len(shape.shape) - len(sharding.spec))]
        found.append(
            Row(
                "/".join(keys),
                shape.shape,
                tuple(str(axis) for axis in axes),
                tuple("+".join(x) if isinstance(x, tuple) else x or "-" for x in spec),
                memory.num_bytes(shape),
                memory.num_bytes(shape, sharding),
                slots["/".join(keys)],
            )
        )
    return found


def _slot_bytes(trainer: Trainer) -> Counter[str]:
    """Returns name of a parameter → bytes of one device's part of its optimizer state."""
    params = flat_names(trainer.state_shapes.params)
    owners = {
        tuple(each.split("/")): name
        for name, shape in params.items()
        for each in {name, *unstacked_names(name, shape.shape)}
    }
    shardings = flat_names(trainer.state_shardings.param_states)
    found: Counter[str] = Counter()
    for name, shape in flat_names(trainer.state_shapes.param_states).items():
        path = tuple(name.split("/"))
        # mtf's optimizers have PARAMETER/SLOT, those of optax end with PARAMETER.
        owner = path[:-1] if path[:-1] in owners else owner_of(path, owners)
        if owner is not None:
            found[owners[owner]] += memory.num_bytes(shape, shardings[name])
    return found


def text(trainer: Trainer) -> str:
    """Returns the table, with totals, and a remark on large parameters that are not split."""
    mesh = trainer.partitioner.mesh
    table = rows(trainer)
    columns = [("parameter", "shape", "logical axes", "split over", "per device", "optimizer")]
    columns += [
        (
            row.name,
            " × ".join(map(str, row.shape)),
            ", ".join(row.axes),
            ", ".join(row.spec) if any(name != "-" for name in row.spec) else "not split",
            _mib(row.part),
            _mib(row.slots),
        )
        for row in table
    ]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place > 3 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in columns
    ]
    axes = " × ".join(f"{name} {size}" for name, size in mesh.shape.items())
    whole, part = sum(row.whole for row in table), sum(row.part for row in table)
    state = trainer.state_shapes.param_states, trainer.state_shardings.param_states
    slots = memory.num_bytes(*state)
    lines.append(
        f"\n{mesh.size} devices ({axes}): parameters {gib(whole)}, {gib(part)} per "
        f"device; optimizer state {gib(slots)} per device"
    )
    for row in table if mesh.size > mesh.shape["data"] else ():
        if row.part == row.whole > _LARGE * whole:
            lines.append(
                f"large, but not split: {row.name} ({row.whole / whole:.0%} of the parameters). No "
                f"rule of partitioner.logical_axis_rules splits {' or '.join(row.axes)} over the "
                f"mesh, or the sizes {', '.join(map(str, row.shape))} are not divisible"
            )
    if mesh.size > 1:
        lines += _whole_slots(trainer, whole)
    return "".join(f"{line}\n" for line in lines)


def _whole_slots(trainer: Trainer, num_bytes: int) -> list[str]:
    """Returns a remark if much of the optimizer state has no parameter's shape and is not split.

    `num_bytes` is the size of all parameters.
    """
    shapes = {shape.shape for shape in jax.tree.leaves(t5.param_shapes(trainer.model.network))}
    shardings = flat_names(trainer.state_shardings.param_states)
    sizes = {
        name: memory.num_bytes(slot)
        for name, slot in flat_names(trainer.state_shapes.param_states).items()
        if slot.shape not in shapes and shardings[name].is_fully_replicated
    }
    if sum(sizes.values()) <= _LARGE * num_bytes:
        return []
    largest = max(sizes, key=sizes.__getitem__)
    return [
        f"large, but not split: {gib(sum(sizes.values()))} of the optimizer state, which has other "
        f"shapes than the parameters; the largest part is {largest}"
    ]


def _mib(count: int) -> str:
    return f"{math.ceil(count / 2**20 * 100) / 100:,.2f} MiB"
