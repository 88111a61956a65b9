"""How a run is spread over devices."""

from mtf.partitioning.settings import PartitionerConfig

__all__ = ["PartitionerConfig"]
