"""Reads and writes checkpoint formats, tensor by tensor. Of mtf, it imports `mtf.storage` only."""

from conversion.architecture import Architecture, infer_architecture
from conversion.checkpoint import list_checkpoints, open_checkpoint
from conversion.tensor import Checkpoint, ConversionError, IncompleteCheckpoint, Tensor

__all__ = [
    "Architecture",
    "Checkpoint",
    "ConversionError",
    "IncompleteCheckpoint",
    "Tensor",
    "infer_architecture",
    "list_checkpoints",
    "open_checkpoint",
]
