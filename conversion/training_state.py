"""Writes a checkpoint in a format that holds a training state: T5X's two layouts, and mtf's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from conversion import mapping, t5x_writer
from conversion.architecture import Architecture, infer_architecture
from conversion.tensor import Checkpoint, ConversionError, Tensor, array_tensor, check_dtype

Format = Literal["t5x", "t5x_orbax", "mtf"]

WRITERS: dict[Format, Callable[[Mapping[str, Tensor], Path], None]] = {
    "t5x": t5x_writer.write_zarr_msgpack,
    "t5x_orbax": t5x_writer.write_orbax,
    "mtf": t5x_writer.write_orbax,
}

_STEP = "state/step"
_SLOTS = "state/param_states/"


@dataclasses.dataclass
class StateExport:
    """A conversion; raises ConversionError if it is impossible, and reads no large tensor.

    Attributes:
      checkpoint: checkpoint of an unrolled T5 1.0, 1.1, mT5 or ByT5.
      to: format to write.
      dtype: type of the written parameters, "float32" or "bfloat16"; None keeps the stored type.
        The type of the optimizer state stays, as in T5X.
      optimizer: "keep" or "drop" the optimizer state; None keeps it if there is any. T5X's formats
        need that of all parameters, which a run with frozen parameters does not have.
      allow_non_finite: whether tensors may contain NaN or infinity.
      architecture: architecture of the checkpoint.
      step: step of the checkpoint; 0 if it has none.
      tensors: tensors to write, by T5X's names.
    """

    checkpoint: Checkpoint
    to: Format
    _: dataclasses.KW_ONLY
    dtype: str | None = None
    optimizer: Literal["keep", "drop"] | None = None
    allow_non_finite: bool = False
    architecture: Architecture = dataclasses.field(init=False)
    step: int = dataclasses.field(init=False)
    tensors: dict[str, Tensor] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        cast = None if self.dtype is None else check_dtype(self.dtype)
        checkpoint = self.checkpoint
        self.architecture = infer_architecture(checkpoint)
        mapping.check_parameters(checkpoint, mapping.entries(self.architecture))
        slots = {name: x for name, x in checkpoint.tensors.items() if name.startswith(_SLOTS)}
        is_partial = bool(slots) and not _covers(slots, checkpoint.parameters())
        if is_partial and self.to != "mtf" and self.optimizer == "keep":
            raise ConversionError(
                f"{checkpoint.path} has the optimizer state of its trained parameters only; T5X "
                "needs that of all. Leave out --optimizer keep, or use --to mtf."
            )
        if self.optimizer is None:
            self.optimizer = "keep" if slots and (not is_partial or self.to == "mtf") else "drop"
        elif self.optimizer == "keep" and not slots:
            raise ConversionError(
                f"{checkpoint.path} has no optimizer state (no tensor under {_SLOTS}). Leave out "
                "--optimizer keep."
            )
        self.step = self._read_step()
        self.tensors = {
            f"target/{name}": tensor if cast is None else tensor.cast(cast)
            for name, tensor in checkpoint.parameters().items()
        }
        if self.optimizer == "keep":
            self.tensors |= slots
        if not self.allow_non_finite:
            finite = {name: x.finite() for name, x in checkpoint.tensors.items()}
            self.tensors = {
                name: finite[name].cast(tensor.dtype) for name, tensor in self.tensors.items()
            }
        self.tensors[_STEP] = array_tensor(_STEP, np.asarray(self.step, np.int32))

    def _read_step(self) -> int:
        stored = self.checkpoint.tensors.get(_STEP)
        return (self.checkpoint.step or 0) if stored is None else int(stored.read())

    @property
    def num_slots(self) -> int:
        """Number of tensors of the optimizer that are written."""
        return sum(name.startswith(_SLOTS) for name in self.tensors)

    @property
    def dtype_names(self) -> str:
        """The types of the written parameters, such as "float32"."""
        params = (x for name, x in self.tensors.items() if name.startswith("target/"))
        return ", ".join(sorted({tensor.dtype.name for tensor in params}))


def _covers(slots: Iterable[str], parameters: Iterable[str]) -> bool:
    """Returns whether each parameter has a slot, whose name contains the parameter's."""
    text = "/\n".join([*slots, ""])
    return all(f"/{name}/" in text for name in parameters)


def write_state(export: StateExport, directory: Path) -> None:
    """Writes the files of a `checkpoint_STEP` into an empty directory.

    Raises ConversionError if a tensor cannot be read or written, or has NaN or infinity that are
    not allowed.
    """
    WRITERS[export.to](export.tensors, directory)
