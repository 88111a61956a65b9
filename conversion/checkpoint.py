"""Opens checkpoints in all supported layouts as flat dicts of tensors with T5X's names."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable

from conversion import adapters, averages, huggingface_reader, mesh_tensorflow, orbax, scanned, t5x
from conversion.checksums import check_small_files
from conversion.tensor import Checkpoint, ConversionError, IncompleteCheckpoint
from mtf.storage import AnyPath, as_path, is_remote
from mtf.storage.copies import nearest_copy

_logger = logging.getLogger(__name__)

_STEP = re.compile(r"checkpoint_(\d+)")
# Temporary directories are called NAME.orbax-checkpoint-tmp[-N] in Orbax and NAME.tmp-N in T5X.
_UNFINISHED = re.compile(r"(\.|-)(orbax-checkpoint-)?tmp(-|$)")


# In object stores, where directories cannot be renamed, Orbax creates this file last.
COMMITTED = "commit_success.txt"


def list_checkpoints(directory: str | AnyPath) -> list[tuple[int, AnyPath]]:
    """Returns (step, path) pairs for the complete checkpoints in DIR/checkpoints or else in DIR."""
    directory = as_path(directory)
    inside = directory / "checkpoints"
    found = [
        (int(match[1]), child)
        for child in (inside if inside.is_dir() else directory).iterdir()
        if (match := _STEP.fullmatch(child.name)) and child.is_dir() and is_committed(child)
    ]
    return sorted(found, key=lambda item: item[0])


def is_committed(checkpoint: AnyPath) -> bool:
    """Returns whether a `checkpoint_STEP` directory is complete.

    On a file system, this is always true, because unfinished directories have other names. In an
    object store, Orbax writes `commit_success.txt` last. A checkpoint that was uploaded from a file
    system may lack this file, but its metadata then contains the time of the commit.
    """
    if not is_remote(checkpoint) or (checkpoint / "checkpoint").is_file():
        return True
    if (checkpoint / COMMITTED).is_file():
        return True
    try:
        metadata = json.loads((checkpoint / "_CHECKPOINT_METADATA").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("commit_timestamp_nsecs") is not None


def open_checkpoint(
    path: str | AnyPath,
    step: int | None = None,
    *,
    ema: bool = False,
    merge_adapters: bool = True,
) -> Checkpoint:
    """Opens a checkpoint without reading tensors; raises ConversionError if it cannot be opened.

    Args:
      path: a `checkpoint_{step}` directory (T5X or Orbax), its `state` directory (Orbax), a
        directory that contains `checkpoint_{step}` directories, a run directory, a Hugging Face
        directory, a Mesh TensorFlow directory, or the path of a checkpoint in such a directory
        (`DIR/model.ckpt-{step}`). If `mtf fetch` has copied a remote path, the copy is opened.
      step: the step of the checkpoint to open if the directory contains several checkpoints; None
        for the latest complete checkpoint.
      ema: whether to read the moving averages of the parameters instead of the parameters.
      merge_adapters: whether to merge LoRA adapters into the kernels instead of returning the
        adapters as separate tensors.
    """
    checkpoint = _open_any(path, step)
    checkpoint = averages.averaged(checkpoint) if ema else checkpoint
    return adapters.merged(checkpoint) if merge_adapters else checkpoint


def _open_any(path: str | AnyPath, step: int | None) -> Checkpoint:
    path = nearest_copy(as_path(path))
    mesh_prefix = mesh_tensorflow.find_prefix(path, step)
    if mesh_prefix is not None:
        return mesh_tensorflow.open_mesh_tensorflow(mesh_prefix)
    is_huggingface = huggingface_reader.is_huggingface(path)
    is_dir = is_huggingface or path.is_dir() or _opener(path) is not None
    if not (is_dir or path.exists()):
        raise ConversionError(f"{path} does not exist; expected a checkpoint.")
    if not is_dir:
        raise ConversionError(
            f"{path} is a file; expected a checkpoint_STEP directory or its parent."
        )
    if _UNFINISHED.search(path.name):
        raise IncompleteCheckpoint(
            f"{path} is an unfinished checkpoint: it is still being written, or writing it was "
            "interrupted. Use a directory named checkpoint_STEP."
        )
    if path.name == "state" and orbax.is_state(path):
        path = path.parent
    if is_huggingface:
        if step is not None:
            raise ConversionError(
                f"{path} is a Hugging Face model, which has no steps. Leave out the step ({step})."
            )
        check_small_files(path)
        return huggingface_reader.open_huggingface(path)
    if not (_opener(path) or _STEP.fullmatch(path.name)):
        return _open_one_of(path, step)
    found = _STEP.fullmatch(path.resolve().name)
    own_step = int(found[1]) if found else None
    if None not in (step, own_step) and step != own_step:
        raise ConversionError(
            f"{path} is the checkpoint of step {own_step}, but step {step} was requested."
        )
    return _open(path, own_step)


def _opener(path: AnyPath) -> Callable[[AnyPath, int | None], Checkpoint] | None:
    """Returns a function that opens the checkpoint `path`, or None if it is not a checkpoint."""
    if (path / "checkpoint").is_file():
        return t5x.open_zarr
    if (path / "state").is_dir() or orbax.is_state(path / "state"):
        return functools.partial(orbax.open_orbax, path / "state")
    return functools.partial(orbax.open_orbax, path) if orbax.is_state(path) else None


def _open(path: AnyPath, step: int | None) -> Checkpoint:
    opener = _opener(path)
    if opener is None:
        raise IncompleteCheckpoint(
            f"{path} is not a complete checkpoint: it has neither a 'checkpoint' file (T5X) "
            "nor a 'state' directory (Orbax)."
        )
    check_small_files(path)
    return scanned.unrolled(opener(path, step))


def _open_one_of(path: AnyPath, step: int | None) -> Checkpoint:
    steps = dict(list_checkpoints(path))
    if not steps:
        raise ConversionError(
            f"There is no checkpoint in {path}; expected checkpoint_STEP directories, a "
            "'checkpoint' file (T5X), a 'state' directory (Orbax), model.safetensors (Hugging "
            "Face), or model.ckpt-STEP.index (Mesh TensorFlow)."
        )
    if step is not None:
        if step not in steps:
            near = sorted(sorted(steps, key=lambda s: abs(s - step))[:5])
            raise ConversionError(
                f"{path} has no checkpoint of step {step}; it has {', '.join(map(str, near))}"
                f"{' and others' if len(steps) > len(near) else ''}."
            )
        return _open(steps[step], step)
    problem: IncompleteCheckpoint | None = None
    for latest in sorted(steps, reverse=True):
        try:
            return _open(steps[latest], latest)
        except IncompleteCheckpoint as error:
            _logger.warning("Skipped an incomplete checkpoint: %s", error)
            problem = problem or error
    raise IncompleteCheckpoint(
        f"{path} has no complete checkpoint. The latest checkpoint cannot be opened: {problem}"
    )
