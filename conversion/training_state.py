"""Writes checkpoints, with or without the optimizer state, in T5X's formats, mtf's, and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from conversion import mapping
from conversion.architecture import infer_architecture
from conversion.checksums import checking, write_checksums
from conversion.formats import output_formats
from conversion.tensor import Checkpoint, ConversionError, Tensor, array_tensor, check_dtype

_STEP = "state/step"
_SLOTS = "state/param_states/"


@dataclasses.dataclass
class StateExport:
    """The settings of a conversion, which are checked without reading large tensors.

    Attributes:
      checkpoint: the checkpoint of a T5 1.0, T5 1.1, mT5 or ByT5 model with unstacked layers.
      to: the format to write, as in `conversion.formats.output_formats`.
      dtype: type of the written parameters, "float32" or "bfloat16", or None to keep the stored
        type. As in T5X, the optimizer state keeps its type.
      optimizer: whether to "keep" or "drop" the optimizer state; None to keep it if possible. T5X's
        formats cannot keep the state of a run with frozen parameters, which have no state.
      allow_non_finite: whether tensors may contain NaN or infinity.
      step: the step of the checkpoint, or 0 if the checkpoint has no step.
      tensors: dict mapping T5X's names to the tensors to write.

    Raises:
      ConversionError: the checkpoint cannot be converted with these settings.
    """

    checkpoint: Checkpoint
    to: str
    _: dataclasses.KW_ONLY
    dtype: str | None = None
    optimizer: Literal["keep", "drop"] | None = None
    allow_non_finite: bool = False
    step: int = dataclasses.field(init=False)
    tensors: dict[str, Tensor] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        cast = None if self.dtype is None else check_dtype(self.dtype)
        checkpoint = self.checkpoint
        mapping.check_parameters(checkpoint, mapping.entries(infer_architecture(checkpoint)))
        slots = {name: x for name, x in checkpoint.tensors.items() if name.startswith(_SLOTS)}
        is_partial = bool(slots) and not _covers(slots, checkpoint.parameters())
        kind = output_formats()[self.to]
        is_writable = kind.has_state and not (is_partial and self.to in kind.of_all_parameters)
        if not is_writable and self.optimizer == "keep":
            raise ConversionError(
                f"{checkpoint.path} has the optimizer state of its trained parameters only, but "
                "T5X needs the state of all. Leave out --optimizer keep, or use --to mtf."
            )
        if self.optimizer is None:
            self.optimizer = "keep" if slots and is_writable else "drop"
        elif self.optimizer == "keep" and not slots:
            raise ConversionError(
                f"{checkpoint.path} has no optimizer state (no tensor under {_SLOTS}). Leave out "
                "--optimizer keep."
            )
        stored = checkpoint.tensors.get(_STEP)
        self.step = (checkpoint.step or 0) if stored is None else int(stored.read())
        self.tensors = {}
        for name, tensor in checkpoint.tensors.items():
            is_parameter = name.startswith("target/")
            if is_parameter or (self.optimizer == "keep" and name in slots):
                found = tensor if self.allow_non_finite else tensor.finite()
                self.tensors[name] = found.cast(cast) if cast and is_parameter else found
        self.tensors[_STEP] = array_tensor(_STEP, np.asarray(self.step, np.int32))

    @property
    def num_slots(self) -> int:
        """The number of optimizer state tensors that are written."""
        return sum(name.startswith(_SLOTS) for name in self.tensors)

    @property
    def dtype_names(self) -> str:
        """The types of the written parameters as text, such as "float32"."""
        params = (x for name, x in self.tensors.items() if name.startswith("target/"))
        return ", ".join(sorted({tensor.dtype.name for tensor in params}))


def _covers(slots: Iterable[str], parameters: Iterable[str]) -> bool:
    """Returns whether the name of each parameter is part of the name of a slot."""
    text = "/\n".join([*slots, ""])
    return all(f"/{name}/" in text for name in parameters)


def write_state(export: StateExport, directory: Path) -> None:
    """Writes the files of a `checkpoint_STEP` directory to an empty directory.

    Raises ConversionError if a tensor cannot be read or written, if a file of the source does not
    match its checksum, or if a tensor contains NaN or infinity and `allow_non_finite` is False.
    """
    write = output_formats()[export.to].write
    assert write is not None
    with checking(export.checkpoint.path):
        write(export.tensors, directory)
    write_checksums(directory)
