"""The checkpoint formats: one entry says all that mtf knows of a format.

Commands, training, evaluation and inference iterate over these entries. Importing this module is
fast, because the module that reads or writes a format is imported when it is first used.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.storage import AnyPath

if TYPE_CHECKING:
    from conversion.tensor import Checkpoint, Tensor

MODEL_CKPT = r"model\.ckpt-(\d+)"
_OF_HUGGINGFACE = ("vocabulary", "config", "model_type", "max_shard_size", "push_to_hub")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    r"""A checkpoint format.

    Attributes:
      name: the value of `Checkpoint.layout`, which messages show.
      title: the name of the format in model cards.
      contains: what a directory of this format contains, for messages.
      find: a function that returns the path of the checkpoint at a path, or None if there is none
        in this format. If `files` is set, it also receives the step, or None for the latest one.
      open: a function that opens the checkpoint that `find` returned, without reading tensors, and
        receives the step in the checkpoint's name, or None. It may raise ConversionError. Without
        `find` and `open`, mtf only writes the format.
      write: a function that writes a dict of tensors with T5X's names to an empty directory. It is
        None if `mtf.cli.convert.export` writes the format, because that takes more than tensors.
      outputs: dict mapping the values of `mtf.convert --to` to their descriptions in the help; if
        it is empty, mtf does not write the format.
      of_all_parameters: the outputs whose optimizer state must be that of all parameters.
      refused_options: the options of `mtf.convert` that cannot be used with the outputs.
      dtype: the default of `mtf.convert --dtype`; None to keep the stored types.
      step_name: a regular expression for the name of a checkpoint, with the step as its group; None
        if the name contains no step.
      is_complete: a function that returns whether a directory in an object store was written
        completely; None if `find` finds only complete checkpoints.
      files: a function that returns the files of a checkpoint. It is set if the path of a
        checkpoint is the prefix of its files, and not a directory.
      has_state: whether the format has the optimizer state and the step.
      has_tokenizer: whether the format has the config and the tokenizer of `transformers`.
      of_t5x: whether T5X can start from a checkpoint of its unrolled network in this format.
    """

    name: str
    title: str
    contains: str = ""
    find: Callable[..., AnyPath | None] = lambda path: None
    open: Callable[[AnyPath, int | None], Any] = lambda path, step: None
    write: Callable[[Mapping[str, Tensor], Path], None] | None = None
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    of_all_parameters: Collection[str] = ()
    refused_options: tuple[str, ...] = _OF_HUGGINGFACE
    dtype: str | None = None
    step_name: str | None = r"checkpoint_(\d+)"
    is_complete: Callable[[AnyPath], bool] | None = None
    files: Callable[[AnyPath], list[AnyPath]] | None = None
    has_state: bool = True
    has_tokenizer: bool = False
    of_t5x: bool = False

    @property
    def in_steps(self) -> bool:
        """Whether a checkpoint is a directory whose name contains the step."""
        return self.step_name is not None and self.files is None


def _lazy(name: str) -> Callable[..., Any]:
    """Returns a function that imports and calls a function of this package."""
    module, function = name.split(".")

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"conversion.{module}"), function)(*arguments)

    return call


# Formats are tried in this order.
FORMATS = [
    Format(
        name="mesh-tensorflow",
        title="Mesh TensorFlow",
        contains="model.ckpt-STEP.index (Mesh TensorFlow)",
        find=_lazy("mesh_tensorflow.find_prefix"),
        open=_lazy("mesh_tensorflow.open_mesh_tensorflow"),
        files=_lazy("tensor_bundle.bundle_files"),
        step_name=MODEL_CKPT,
    ),
    Format(
        name="huggingface",
        title="Hugging Face",
        contains="model.safetensors (Hugging Face)",
        find=_lazy("huggingface_reader.find"),
        open=_lazy("huggingface_reader.open_huggingface"),
        outputs={"hf": "Hugging Face, for PyTorch"},
        refused_options=(),
        dtype="float32",
        step_name=None,
        has_state=False,
        has_tokenizer=True,
    ),
    Format(
        name="t5x-zarr",
        title="T5X with zarr and msgpack",
        contains="a 'checkpoint' file (T5X)",
        find=lambda path: path if (path / "checkpoint").is_file() else None,
        open=_lazy("t5x.open_zarr"),
        write=_lazy("t5x_writer.write_zarr_msgpack"),
        outputs={"t5x": "T5X's zarr and msgpack"},
        of_all_parameters=("t5x",),
        of_t5x=True,
    ),
    Format(
        name="orbax",
        title="Orbax layout of T5X and mtf",
        contains="a 'state' directory (Orbax)",
        find=_lazy("orbax.find"),
        open=_lazy("orbax.open_orbax"),
        is_complete=_lazy("orbax.is_committed"),
        write=_lazy("t5x_writer.write_orbax"),
        outputs={"t5x_orbax": "T5X's Orbax layout", "mtf": "mtf's Orbax layout"},
        of_all_parameters=("t5x_orbax",),
        of_t5x=True,
    ),
    Format(
        name="peft",
        title="PEFT",
        outputs={"peft": "the LoRA adapters only, for PEFT"},
        refused_options=("verify", "dtype", "optimizer", *_OF_HUGGINGFACE),
        step_name=None,
        has_state=False,
    ),
]


def register_format(format: Format) -> None:
    """Adds a format, which is tried before the others; replaces a format of the same name."""
    FORMATS[:] = [format, *(each for each in FORMATS if each.name != format.name)]


def find(path: AnyPath, step: int | None = None) -> tuple[Format, AnyPath] | None:
    """Returns the format and the path of the checkpoint at `path`, or None if there is none."""
    for each in FORMATS:
        found = each.find(path, step) if each.files else each.find(path)
        if found is not None:
            return each, found
    return None


def find_prefix(path: AnyPath, step: int | None = None) -> AnyPath | None:
    """Returns the common prefix of a checkpoint's files at `path`, or None if there is none."""
    found = (each.find(path, step) for each in FORMATS if each.files)
    return next((prefix for prefix in found if prefix is not None), None)


def format_of_prefix(path: str) -> Format | None:
    """Returns the format of a checkpoint whose path is the prefix of its files, otherwise None."""
    name = path.rpartition("/")[2]
    prefixes = (each for each in FORMATS if each.files and re.match(each.step_name or "", name))
    return next(prefixes, None)


def format_of(checkpoint: Checkpoint) -> Format:
    """Returns the format of an opened checkpoint."""
    return next(each for each in FORMATS if each.name == checkpoint.layout)


def output_formats() -> dict[str, Format]:
    """Returns a dict mapping each value of `mtf.convert --to` to the format that it writes."""
    return {to: each for each in FORMATS for to in each.outputs}


def step_in(name: str) -> int | None:
    """Returns the step in the name of a checkpoint, or None if it contains no step."""
    matches = (re.fullmatch(each.step_name, name) for each in FORMATS if each.step_name)
    return next((int(match[1]) for match in matches if match), None)
