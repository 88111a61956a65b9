"""The exponential moving average of the parameters, which a checkpoint of mtf may have."""

from __future__ import annotations

import dataclasses

from conversion.tensor import Checkpoint, ConversionError

_AVERAGE, _PARAMETERS = "state/ema/", "target/"


def has_average(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint has an average of the parameters that were trained."""
    return any(name.startswith(_AVERAGE) for name in checkpoint.tensors)


def averaged(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with the average in place of the parameters.

    Parameters that were not trained have no average, and stay. Raises ConversionError if the
    checkpoint has no average.
    """
    if not has_average(checkpoint):
        raise ConversionError(
            f"{checkpoint.path} has no average of the parameters: its run had no trainer.ema."
        )
    tensors = dict(checkpoint.tensors)
    for name in checkpoint.tensors:
        if name.startswith(_AVERAGE):
            target = _PARAMETERS + name.removeprefix(_AVERAGE)
            tensors[target] = dataclasses.replace(tensors.pop(name), name=target)
    return dataclasses.replace(checkpoint, tensors=tensors)
