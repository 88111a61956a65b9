"""Distributes a run across devices."""

from mtf.partitioning.chips import Chip, Gpu, register_chip
from mtf.partitioning.settings import FULLY_SHARDED_AXIS_RULES, PartitionerConfig

__all__ = ["FULLY_SHARDED_AXIS_RULES", "Chip", "Gpu", "PartitionerConfig", "register_chip"]
