"""The settings for distributing a run across devices. Does not import JAX."""

from __future__ import annotations

import dataclasses
import math

from mtf.base.checks import AT_LEAST_ONE, check_fields
from mtf.base.errors import UserError, did_you_mean

MESH_AXES = ("data", "fsdp", "model")
Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]

# Logical axis → mesh axis or axes, for parameters and activations (T5X:
# `partitioning.standard_logical_axis_rules`). The mesh axis `fsdp` splits the `embed` axis of
# parameters. In activations, it splits the `batch` axis, whose rule comes before that of `embed`.
LOGICAL_AXIS_RULES: Rules = (
    ("batch", ("data", "fsdp")),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("joined_kv", "model"),
    ("embed", "fsdp"),
    ("kv", None),
    ("length", None),
    ("layers", None),
    ("relpos_buckets", None),
)
# These rules also split the `embed` axis of activations over the model axis, and that of most
# parameters over the data and fsdp axes (T5X: `standard_logical_axis_rules` with two activation and
# two parameter partitioning dims).
FULLY_SHARDED_AXIS_RULES: Rules = (
    ("batch", ("data", "fsdp")),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("joined_kv", "model"),
    ("kv", None),
    ("embed", "model"),
    ("embed", ("data", "fsdp")),
    ("relpos_buckets", None),
    ("length", None),
    ("layers", None),
)


def mesh_axes(wanted: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of a rule as a tuple."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted or ())


@dataclasses.dataclass(frozen=True)
class PartitionerConfig:
    """A mesh of devices with the axes data, fsdp and model (T5X: `PjitPartitioner`).

    The size of the data axis is the number of devices divided by `fsdp` and `num_partitions`.
    Batches are split over data and fsdp, parameters over fsdp and model.

    Attributes:
      num_partitions: the size of the model axis, over which parameter matrices are split.
      model_parallel_submesh: the shape (x, y, z, cores) of the blocks of a TPU's torus that form
        the model axis; an alternative to `num_partitions`.
      fsdp: the size of the fsdp axis, over which parameters, optimizer state and batches are split.
      logical_axis_rules: pairs of a logical axis and its mesh axes, in order of priority. As in
        flax, a dimension uses the first of its rules whose mesh axes are not yet used in the array.
        Rules whose mesh axes do not divide the dimension evenly are skipped.
    """

    num_partitions: int | None = None
    model_parallel_submesh: tuple[int, int, int, int] | None = None
    fsdp: int = 1
    logical_axis_rules: Rules = LOGICAL_AXIS_RULES

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "num_partitions", optional=True)
        check_fields(self, AT_LEAST_ONE, "fsdp")
        submesh = self.model_parallel_submesh
        if submesh is not None:
            if len(submesh) != 4 or min(submesh) < 1:
                raise UserError(
                    f"model_parallel_submesh must be 4 positive numbers, not {submesh}."
                )
            if self.num_partitions not in (None, math.prod(submesh)):
                raise UserError(
                    f"model_parallel_submesh {submesh} spans {math.prod(submesh)} devices, but "
                    f"num_partitions is {self.num_partitions}. Set only one of the two."
                )
        known = dict.fromkeys(name for name, _ in LOGICAL_AXIS_RULES)
        problems = []
        for name, wanted in self.logical_axis_rules:
            rule = f"({name!r}, {wanted!r})"
            if name not in known:
                problems.append(
                    f"{rule}: {name!r} is not a logical axis; expected one of {', '.join(known)}."
                    + did_you_mean(name, known)
                )
            for axis in mesh_axes(wanted):
                if axis not in MESH_AXES:
                    problems.append(
                        f"{rule}: {axis!r} is not a mesh axis; expected "
                        f"{', '.join(MESH_AXES)} or None." + did_you_mean(axis, MESH_AXES)
                    )
            if len(set(mesh_axes(wanted))) < len(mesh_axes(wanted)):
                problems.append(f"{rule}: the rule contains a mesh axis twice.")
        if problems:
            raise UserError("logical_axis_rules: " + "\n  ".join(problems))

    @property
    def min_devices(self) -> int:
        """The smallest number of devices that the mesh can have; any multiple is also valid."""
        submesh = self.model_parallel_submesh
        return self.fsdp * (math.prod(submesh) if submesh else self.num_partitions or 1)

    def mesh_shape(self, num_devices: int) -> tuple[int, int, int]:
        """Returns the axis sizes (data, fsdp, model) of the mesh on a number of devices.

        Raises UserError if the number is not a multiple of `min_devices`.
        """
        submesh, used = self.model_parallel_submesh, self.min_devices
        num_partitions = used // self.fsdp
        if num_devices % used:
            setting, parts = "num_partitions", "num_partitions"
            if submesh is not None:
                setting, parts = "model_parallel_submesh", f"the devices of the submesh {submesh}"
            raise UserError(
                f"The mesh needs a multiple of fsdp × {parts} = {self.fsdp} × {num_partitions} = "
                f"{used} devices, but there are {num_devices}. Set partitioner.fsdp and "
                f"partitioner.{setting} so that this product divides {num_devices}, or try the "
                "recipe with --apply smoke_test."
            )
        return num_devices // used, self.fsdp, num_partitions
