"""Writes checkpoints, with or without the optimizer state, in T5X's formats, mtf's, and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from conversion import mapping
from conversion.architecture import infer_architecture
from conversion.checksums import checking, write_checksums
from conversion.formats import output_formats
from conversion.tensor import Checkpoint, ConversionError, Tensor, array_tensor, check_dtype
from mtf.storage import AnyPath

STEP, SLOTS = "state/step", "state/param_states/"


def state_tensors(
    checkpoint: Checkpoint,
    to: str,
    *,
    dtype: str | None = None,
    optimizer: Literal["keep", "drop"] | None = None,
    allow_non_finite: bool = False,
) -> dict[str, Tensor]:
    """Returns the tensors to write, by T5X's names, without reading large tensors.

    Args:
      checkpoint: the checkpoint of a T5 1.0, T5 1.1, mT5 or ByT5 model with unstacked layers.
      to: the format to write, as in `conversion.formats.output_formats`.
      dtype: type of the written parameters, "float32" or "bfloat16", or None to keep the stored
        type. As in T5X, the optimizer state keeps its type.
      optimizer: whether to "keep" or "drop" the optimizer state; None to keep it if possible. T5X's
        formats cannot keep the state of a run with frozen parameters, which have no state.
      allow_non_finite: whether tensors may contain NaN or infinity.

    Raises:
      ConversionError: the checkpoint cannot be converted with these settings.
    """
    cast = None if dtype is None else check_dtype(dtype)
    mapping.check_parameters(checkpoint, mapping.entries(infer_architecture(checkpoint)))
    slots = {name: x for name, x in checkpoint.tensors.items() if name.startswith(SLOTS)}
    is_partial = bool(slots) and not _covers(slots, checkpoint.parameters())
    kind = output_formats()[to]
    is_writable = kind.has_state and not (is_partial and to in kind.of_all_parameters)
    if not is_writable and optimizer == "keep":
        raise ConversionError(
            f"{checkpoint.path} has the optimizer state of its trained parameters only, but "
            "T5X needs the state of all. Leave out --optimizer keep, or use --to mtf."
        )
    if optimizer == "keep" and not slots:
        raise ConversionError(
            f"{checkpoint.path} has no optimizer state (no tensor under {SLOTS}). Leave out "
            "--optimizer keep."
        )
    stored = checkpoint.tensors.get(STEP)
    step = (checkpoint.step or 0) if stored is None else int(stored.read())
    tensors = dict(slots) if is_writable and optimizer != "drop" else {}
    for name, tensor in checkpoint.parameters().items():
        tensors[f"target/{name}"] = tensor
    if not allow_non_finite:
        tensors = {name: x.finite() for name, x in tensors.items()}
    if cast is not None:
        tensors |= {n: x.cast(cast) for n, x in tensors.items() if n.startswith("target/")}
    return {**tensors, STEP: array_tensor(STEP, np.asarray(step, np.int32))}


def _covers(slots: Iterable[str], parameters: Iterable[str]) -> bool:
    """Returns whether the name of each parameter is part of the name of a slot."""
    text = "/\n".join([*slots, ""])
    return all(f"/{name}/" in text for name in parameters)


def write_state(tensors: Mapping[str, Tensor], to: str, source: AnyPath, directory: Path) -> None:
    """Writes the files of a `checkpoint_STEP` directory in the format `to` to an empty directory.

    `source` is the path of the checkpoint from which the tensors are read. Raises ConversionError
    if a tensor cannot be read or written, if a file of the source does not match its checksum, or
    if a tensor contains NaN or infinity that `state_tensors` does not allow.
    """
    write = output_formats()[to].write
    assert write is not None
    with checking(source):
        write(tensors, directory)
    write_checksums(directory)
