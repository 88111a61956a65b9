"""How a run is spread over devices."""

from __future__ import annotations

import fiddle as fdl

from mtf.partitioning.settings import PartitionerConfig


def pjit(num_partitions: int | None = None, *, fsdp: int = 1) -> fdl.Config[PartitionerConfig]:
    """A mesh (data, fsdp, model); what `num_partitions` and `fsdp` leave is the data axis."""
    return fdl.Config(PartitionerConfig, num_partitions=num_partitions, fsdp=fsdp)
