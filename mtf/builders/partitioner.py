"""How a run is spread over devices."""

from __future__ import annotations

import fiddle as fdl

from mtf.partitioning.config import PjitPartitioner


def pjit(num_partitions: int | None = None, *, fsdp: int = 1) -> fdl.Config[PjitPartitioner]:
    """A mesh (data, fsdp, model); what `num_partitions` and `fsdp` leave is the data axis."""
    return fdl.Config(PjitPartitioner, num_partitions=num_partitions, fsdp=fsdp)
