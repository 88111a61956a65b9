"""Reads and writes checkpoints tensor by tensor. Does not import mtf, except `mtf.storage`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conversion.architecture import infer_architecture as infer_architecture
    from conversion.checkpoint import open_checkpoint as open_checkpoint
    from conversion.families import Architecture as Architecture
    from conversion.formats import list_checkpoints as list_checkpoints
    from conversion.tensor import Checkpoint as Checkpoint
    from conversion.tensor import ConversionError as ConversionError
    from conversion.tensor import IncompleteCheckpoint as IncompleteCheckpoint
    from conversion.tensor import Tensor as Tensor

_DEFINED_IN = {
    "Architecture": "families",
    "Checkpoint": "tensor",
    "ConversionError": "tensor",
    "IncompleteCheckpoint": "tensor",
    "Tensor": "tensor",
    "infer_architecture": "architecture",
    "list_checkpoints": "formats",
    "open_checkpoint": "checkpoint",
}


def __getattr__(name: str) -> Any:
    """Returns the public object called `name`; imports the object's module on first use."""
    if name in _DEFINED_IN:
        return getattr(importlib.import_module(f"conversion.{_DEFINED_IN[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
