"""Determines which devices a run uses; they need not be available on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mtf.base.errors import UserError
from mtf.base.host_memory import gib
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner, devices_keeping_memory
from mtf.partitioning.settings import PartitionerConfig


@dataclasses.dataclass(frozen=True)
class RunDevices:
    """The devices for a run.

    Attributes:
      partitioner: a partitioner for the available devices if the run can use them, otherwise for
        the smallest possible number of devices. Its mesh is abstract and can only be used to
        compute shardings.
      batch_size, num_microbatches: the size of the global batch and the number of its microbatches.
      here: the available devices (`jax.devices()`).
      refused: the reason why the run cannot use the available devices; None if it can use them.
    """

    partitioner: PjitPartitioner
    batch_size: int
    num_microbatches: int
    here: Sequence[Any]
    refused: str | None

    def check_batch(self) -> str:
        """Describes how the batch is split; raises UserError if it cannot be split evenly."""
        self.partitioner.check_batch_size(self.batch_size, self.num_microbatches)
        shards = self.partitioner.num_data_shards
        text = f"{self.batch_size} rows, {self.batch_size // shards} per data shard"
        if self.num_microbatches > 1:
            text += f", {self.num_microbatches} microbatches"
        return text

    def rows(self, needed: int | None = None) -> dict[str, str]:
        """Returns a dict that describes the run's devices, its mesh and the available devices.

        `needed` is the minimum memory in bytes that the run needs on each device.
        """
        mesh = self.partitioner.mesh
        kind = self.here[0].device_kind
        available = memory.device_bytes(self.here)
        if self.refused is not None:
            fits = f"does not run: {self.refused}"
        elif needed is not None and available is not None and needed > available:
            fits = f"does not fit: needs at least {gib(needed)} of {gib(available)} per device"
        else:
            fits = "runs" if available is None else f"runs, with {gib(available)} per device"
        return {
            "devices": f"{mesh.size}, or a multiple" if self.refused else f"{mesh.size} × {kind}",
            "mesh": " × ".join(f"{name} {n}" for name, n in mesh.shape.items()),
            "here": f"{len(self.here)} × {kind}: {fits}",
        }


def run_devices(
    config: PartitionerConfig, batch_size: int = 0, num_microbatches: int = 1
) -> RunDevices:
    """Returns the devices for a mesh and a batch, without allocating arrays.

    A `batch_size` of 0 means that batches are padded to fit any mesh.
    """
    here, refused = devices_keeping_memory(), None
    try:
        partitioner = PjitPartitioner.create(config, here)
        partitioner.check_batch_size(batch_size, num_microbatches)
    except UserError as error:
        least = config.min_devices
        refused = (
            f"the mesh needs {least} devices or a multiple" if len(here) % least else str(error)
        )
    number = len(here) if refused is None else config.min_devices
    partitioner = PjitPartitioner.create_abstract(config, number)
    return RunDevices(partitioner, batch_size, num_microbatches, here, refused)
