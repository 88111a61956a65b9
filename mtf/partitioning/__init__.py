"""Distribution of a run over devices."""

from mtf.partitioning.settings import PartitionerConfig

__all__ = ["PartitionerConfig"]
