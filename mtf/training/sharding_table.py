"""Shows how the parameters of a run are split over its mesh (`--print sharding`)."""

from __future__ import annotations

import math

from mtf.base.host_memory import gib
from mtf.models.trees import flat_names
from mtf.partitioning import memory
from mtf.training.trainer import Trainer

# A parameter that is not split is reported if its size exceeds this fraction of the total size.
_LARGE = 0.01


def text(trainer: Trainer) -> str:
    """Returns a table of the parameters, totals, and the large parameters that are not split.

    Each row of the table shows the T5X name of an array (with `layers` for stacked layers), its
    shape, its logical axes, the mesh axes over which each dimension is split, and the size of the
    part that one device stores.
    """
    mesh = trainer.partitioner.mesh
    shapes, shardings = trainer.state_shapes, trainer.state_shardings
    split = flat_names(shardings.params)
    axes = flat_names(trainer.axes)
    whole, part = memory.num_bytes(shapes.params), memory.num_bytes(shapes.params, shardings.params)
    columns = [("parameter", "shape", "logical axes", "split over", "per device")]
    remarks = []
    for name, shape in flat_names(shapes.params).items():
        spec = [*split[name].spec, *(None,) * (len(shape.shape) - len(split[name].spec))]
        over = ["+".join(x) if isinstance(x, tuple) else x or "-" for x in spec]
        here = memory.num_bytes(shape, split[name])
        columns.append(
            (
                name,
                " × ".join(map(str, shape.shape)),
                ", ".join(axes[name]),
                ", ".join(over) if any(each != "-" for each in over) else "not split",
                f"{math.ceil(here / 2**20 * 100) / 100:,.2f} MiB",
            )
        )
        if mesh.size > mesh.shape["data"] and here == memory.num_bytes(shape) > _LARGE * whole:
            remarks.append(
                f"large, but not split: {name} ({here / whole:.0%} of the parameters). Either no "
                f"rule in partitioner.logical_axis_rules splits {' or '.join(axes[name])} over the "
                f"mesh, or {', '.join(map(str, shape.shape))} are not divisible by its axis sizes"
            )
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if column == 4 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in columns
    ]
    sizes = " × ".join(f"{name} {size}" for name, size in mesh.shape.items())
    states = memory.num_bytes(shapes.param_states, shardings.param_states)
    lines.append(
        f"\n{mesh.size} devices ({sizes}): parameters {gib(whole)}, {gib(part)} per "
        f"device; optimizer state {gib(states)} per device"
    )
    return "".join(f"{line}\n" for line in (*lines, *remarks))
