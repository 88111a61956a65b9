"""How a run is spread over devices. Imports no jax."""

from __future__ import annotations

import dataclasses
import math

from mtf.errors import UserError

# Logical axis → mesh axis or axes (T5X: `partitioning.standard_logical_axis_rules`). Parameters
# and activations share the table: `embed` of a parameter is split over `fsdp`, of an activation
# never, since `batch` has taken that mesh axis already and stands earlier in the array.
LOGICAL_AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
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


@dataclasses.dataclass(frozen=True)
class PjitPartitioner:
    """A mesh of devices with the axes data, fsdp and model (T5X: `PjitPartitioner`).

    What is left after `num_partitions` and `fsdp` is the data axis: batches are split over data
    and fsdp, parameters over fsdp and model.

    Attributes:
      num_partitions: devices over which one copy of the model's matrices is split.
      model_parallel_submesh: the same as a block (x, y, z, cores) of a TPU's torus; its product
        is the number of partitions. Give this or `num_partitions`.
      fsdp: devices over which parameters and optimizer state are split as well as the batch.
      logical_axis_rules: logical axis → mesh axis; the first rule whose mesh axis is still free
        in an array holds. A dimension that the mesh axis does not divide is not split.
    """

    num_partitions: int | None = None
    model_parallel_submesh: tuple[int, int, int, int] | None = None
    fsdp: int = 1
    logical_axis_rules: tuple[tuple[str, str | tuple[str, ...] | None], ...] = LOGICAL_AXIS_RULES

    def __post_init__(self) -> None:
        if self.num_partitions is not None and self.num_partitions < 1:
            raise UserError(f"num_partitions must be at least 1, not {self.num_partitions}.")
        if self.fsdp < 1:
            raise UserError(f"fsdp must be at least 1, not {self.fsdp}.")
        submesh = self.model_parallel_submesh
        if submesh is not None:
            if len(submesh) != 4 or min(submesh) < 1:
                raise UserError(
                    f"model_parallel_submesh must be four positive numbers, not {submesh}."
                )
            if self.num_partitions not in (None, math.prod(submesh)):
                raise UserError(
                    f"model_parallel_submesh {submesh} has {math.prod(submesh)} devices, but "
                    f"num_partitions is {self.num_partitions}. Give one of the two."
                )

    @property
    def model_parallelism(self) -> int:
        """Size of the mesh's model axis."""
        if self.model_parallel_submesh is not None:
            return math.prod(self.model_parallel_submesh)
        return self.num_partitions or 1

    def mesh_shape(self, num_devices: int) -> tuple[int, int, int]:
        """(data, fsdp, model) for so many devices.

        Raises:
          UserError: the devices cannot be divided so.
        """
        used = self.fsdp * self.model_parallelism
        if num_devices % used:
            raise UserError(
                f"The mesh needs a multiple of fsdp × num_partitions = {self.fsdp} × "
                f"{self.model_parallelism} = {used} devices, but there are {num_devices}. "
                "Set partitioner.num_partitions and partitioner.fsdp to numbers that divide them."
            )
        return num_devices // used, self.fsdp, self.model_parallelism
