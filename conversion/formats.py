"""The checkpoint formats: one entry says all that mtf knows of a format.

Importing this module is fast: the modules that read and write a format are imported when needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.storage import AnyPath, as_path, is_remote

if TYPE_CHECKING:
    from conversion.tensor import Checkpoint, Tensor

MODEL_CKPT = r"model\.ckpt-(\d+)"
_STEP = r"checkpoint_(\d+)"
_ONLY_HF = ("vocabulary", "config", "model_type", "max_shard_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A checkpoint format, which mtf reads if `find` and `open` are set, and writes to `outputs`.

    Attributes:
      name: the value of `Checkpoint.layout`, which messages show.
      title: the name in model cards.
      find: a function that returns the path of the checkpoint at a path, or None if there is none.
      open: a function that opens the checkpoint that `find` returned without reading tensors. It
        also receives the step in the checkpoint's name, or None.
      write: a function that writes tensors, by T5X's names, to an empty directory; None for formats
        that `mtf.jobs.convert.export` writes.
      outputs: dict mapping the values of `mtf.convert --to` to descriptions for its help.
      of_all_parameters: the outputs whose optimizer state must include all parameters.
      refused: the options of `mtf.convert` that cannot be used with the outputs.
      dtype: the default of `mtf.convert --dtype`; None to keep the stored types.
      step_name: a regular expression for names with a step, its group; None if there is no step.
      is_complete: a function that returns whether a directory in an object store is a complete
        checkpoint; None if `find` does.
      files: a function that returns the files of a checkpoint, if its path is not a directory but
        the common prefix of files. In this case, `find` also receives the step, or None.
      has_state: whether the format can contain the optimizer state.
      has_tokenizer: whether the directory has the config and the tokenizer of `transformers`.
      of_t5x: whether T5X reads the format.
    """

    name: str
    title: str
    find: Callable[..., AnyPath | None] = lambda path: None
    open: Callable[[AnyPath, int | None], Any] = lambda path, step: None
    write: Callable[[Mapping[str, Tensor], Path], object] | None = None
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    of_all_parameters: Collection[str] = ()
    refused: tuple[str, ...] = _ONLY_HF
    dtype: str | None = None
    step_name: str | None = _STEP
    is_complete: Callable[[AnyPath], bool] | None = None
    files: Callable[[AnyPath], list[AnyPath]] | None = None
    has_state: bool = True
    has_tokenizer: bool = False
    of_t5x: bool = False


def _lazy(module: str, function: str) -> Callable[..., Any]:
    """Returns a function of this package whose module is imported at the first call."""
    return lambda *args: getattr(importlib.import_module(f"conversion.{module}"), function)(*args)


_is_huggingface = _lazy("huggingface_reader", "is_huggingface")
# `find` tries the formats in this order.
FORMATS = [
    Format(
        name="mesh-tensorflow",
        title="Mesh TensorFlow",
        find=_lazy("mesh_tensorflow", "find_prefix"),
        open=_lazy("mesh_tensorflow", "open_mesh_tensorflow"),
        files=_lazy("tensor_bundle", "bundle_files"),
        step_name=MODEL_CKPT,
    ),
    Format(
        name="huggingface",
        title="Hugging Face",
        find=lambda path: path if _is_huggingface(path) else None,
        open=_lazy("huggingface_reader", "open_huggingface"),
        outputs={"hf": "Hugging Face, for PyTorch"},
        refused=(),
        dtype="float32",
        step_name=None,
        has_state=False,
        has_tokenizer=True,
    ),
    Format(
        name="t5x-zarr",
        title="T5X with zarr and msgpack",
        find=lambda path: path if (path / "checkpoint").is_file() else None,
        open=_lazy("t5x", "open_zarr"),
        write=_lazy("t5x_writer", "write_zarr_msgpack"),
        outputs={"t5x": "T5X's zarr and msgpack"},
        of_all_parameters=("t5x",),
        of_t5x=True,
    ),
    Format(
        name="orbax",
        title="Orbax layout of T5X and mtf",
        find=_lazy("orbax", "find"),
        open=_lazy("orbax", "open_orbax"),
        is_complete=_lazy("orbax", "is_committed"),
        write=_lazy("t5x_writer", "write_orbax"),
        outputs={"t5x_orbax": "T5X's Orbax layout", "mtf": "mtf's Orbax layout"},
        of_all_parameters=("t5x_orbax",),
        of_t5x=True,
    ),
    Format(
        name="peft",
        title="PEFT",
        outputs={"peft": "the LoRA adapters only, for PEFT"},
        refused=("dtype", "optimizer", *_ONLY_HF),
        has_state=False,
    ),
]


def register_format(added: Format) -> None:
    """Adds a format, which is tried before the others; replaces a format of the same name."""
    FORMATS[:] = [added, *(each for each in FORMATS if each.name != added.name)]


def find(path: AnyPath, step: int | None = None) -> tuple[Format, AnyPath] | None:
    """Returns the format and the path of the checkpoint at `path`, or None if there is none."""
    tried = ((x, x.find(path, step) if x.files else x.find(path)) for x in FORMATS)
    return next(((x, found) for x, found in tried if found is not None), None)


def find_prefix(path: AnyPath, step: int | None = None) -> AnyPath | None:
    """Returns the common prefix of a checkpoint's files at `path`, or None if there is none."""
    tried = (each.find(path, step) for each in FORMATS if each.files)
    return next((found for found in tried if found is not None), None)


def format_of_prefix(path: str) -> Format | None:
    """Returns the format of a checkpoint whose path is the prefix of its files, otherwise None."""
    name = path.rpartition("/")[2]
    return next((x for x in FORMATS if x.files and re.match(x.step_name or "", name)), None)


def format_of(checkpoint: Checkpoint) -> Format:
    """Returns the format of an opened checkpoint."""
    return next(each for each in FORMATS if each.name == checkpoint.layout)


def output_formats() -> dict[str, Format]:
    """Returns a dict mapping each value of `mtf.convert --to` to its format."""
    return {to: each for each in FORMATS for to in each.outputs}


def step_in(name: str) -> int | None:
    """Returns the step in the name of a checkpoint, or None if it contains no step."""
    matches = (re.fullmatch(each.step_name, name) for each in FORMATS if each.step_name)
    return next((int(match[1]) for match in matches if match), None)


def list_checkpoints(directory: str | AnyPath) -> list[tuple[int, AnyPath]]:
    """Returns (step, path) pairs for the complete checkpoints in DIR/checkpoints or else in DIR."""
    directory = as_path(directory)
    inside = directory / "checkpoints"
    found = [
        (int(match[1]), child)
        for child in (inside if inside.is_dir() else directory).iterdir()
        if (match := re.fullmatch(_STEP, child.name)) and child.is_dir() and _is_complete(child)
    ]
    return sorted(found, key=lambda item: item[0])


def _is_complete(checkpoint: AnyPath) -> bool:
    # On a file system, incomplete directories have other names.
    kinds = (each for each in FORMATS if each.step_name == _STEP)
    return not is_remote(checkpoint) or any((x.is_complete or x.find)(checkpoint) for x in kinds)
