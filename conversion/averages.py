"""Reads the exponential moving averages (EMAs) of the parameters from an mtf checkpoint."""

from __future__ import annotations

import dataclasses

from conversion.tensor import Checkpoint, ConversionError

_AVERAGE, _PARAMETERS = "state/ema/", "target/"


def has_average(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint contains moving averages of the trained parameters."""
    return any(name.startswith(_AVERAGE) for name in checkpoint.tensors)


def averaged(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with the trained parameters replaced by their moving averages.

    Frozen parameters, which have no averages, are kept. Raises ConversionError if the checkpoint
    contains no averages.
    """
    if not has_average(checkpoint):
        raise ConversionError(
            f"{checkpoint.path} has no average of the parameters: its run did not set trainer.ema."
        )
    tensors = dict(checkpoint.tensors)
    for name in checkpoint.tensors:
        if name.startswith(_AVERAGE):
            target = _PARAMETERS + name.removeprefix(_AVERAGE)
            tensors[target] = dataclasses.replace(tensors.pop(name), name=target)
    return dataclasses.replace(checkpoint, tensors=tensors)
