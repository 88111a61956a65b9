"""Finds the devices that a run is meant for, which may be other devices than those here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from mtf.errors import UserError
from mtf.host_memory import gib
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig


@dataclasses.dataclass(frozen=True)
class PlannedDevices:
    """The devices of a run that need not be here.

    Attributes:
      partitioner: the mesh of the devices here if the run can use them, otherwise of the smallest
        number of devices. It has no devices, so it can only compute shardings.
      config: settings of the mesh.
      batch_size, num_microbatches: the batch that is split over the devices.
      here: the devices here.
      refused: why the run cannot use the devices here; None: it can.
    """

    partitioner: PjitPartitioner
    config: PartitionerConfig
    batch_size: int
    num_microbatches: int
    here: Sequence[Any]
    refused: str | None

    def check_batch(self) -> str:
        """Returns how the batch is split; raises UserError if it cannot be."""
        self.partitioner.check_batch_size(self.batch_size, self.num_microbatches)
        shards = self.partitioner.num_data_shards
        text = f"{self.batch_size} rows, {self.batch_size // shards} per data shard"
        if self.num_microbatches > 1:
            text += f", {self.num_microbatches} microbatches"
        return text

    def rows(self, needed: int | None = None) -> dict[str, str]:
        """Returns rows on devices, mesh and the devices here, for `Description`.

        `needed` is the least number of bytes that the run needs on each device.
        """
        mesh = self.partitioner.mesh
        here = f"{len(self.here)} × {self.here[0].device_kind}"
        available = memory.device_bytes(self.here)
        if self.refused is not None:
            fits = f"does not run: {self.refused}"
        elif needed is not None and available is not None and needed > available:
            fits = f"does not fit: at least {gib(needed)} of {gib(available)} per device"
        else:
            fits = "runs" if available is None else f"runs, with {gib(available)} per device"
        return {
            "devices": self._devices(),
            "mesh": " × ".join(f"{name} {n}" for name, n in mesh.shape.items()),
            "here": f"{here}: {fits}",
        }

    def _devices(self) -> str:
        size = self.partitioner.mesh.size
        if self.refused is None:
            return f"{size} × {self.here[0].device_kind}"
        if not self.batch_size:
            return f"{size}, or a multiple"
        shards = self.partitioner.num_data_shards * self.num_microbatches
        most = PjitPartitioner.create_abstract(
            self.config, size * max(self.batch_size // shards, 1)
        )
        if self.batch_size % (most.num_data_shards * self.num_microbatches):
            return str(size)
        return f"{size}, or a multiple up to {most.mesh.size:,}"


def plan_devices(
    config: PartitionerConfig, batch_size: int = 0, num_microbatches: int = 1
) -> PlannedDevices:
    """Returns the devices for a mesh and a batch; allocates nothing.

    A `batch_size` of 0 stands for batches that are padded to any mesh.
    """
    here, refused = jax.devices(), None
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
    return PlannedDevices(partitioner, config, batch_size, num_microbatches, here, refused)
