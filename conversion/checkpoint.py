"""Opens checkpoints in all supported layouts as flat dicts of tensors with T5X's names."""

from __future__ import annotations

import dataclasses
import logging
import re

from conversion import adapters, formats, scanned
from conversion.checksums import check_small_files
from conversion.tensor import Checkpoint, ConversionError, IncompleteCheckpoint
from mtf.storage import AnyPath, as_path
from mtf.storage.copies import nearest_copy

_logger = logging.getLogger(__name__)

# The beginning of the names of the parameters' exponential moving averages, in mtf's checkpoints.
_AVERAGE = "state/ema/"
# Temporary directories are called NAME.orbax-checkpoint-tmp[-N] in Orbax and NAME.tmp-N in T5X.
_UNFINISHED = re.compile(r"(\.|-)(orbax-checkpoint-)?tmp(-|$)")


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
    checkpoint = _averaged(checkpoint) if ema else checkpoint
    return adapters.merged(checkpoint) if merge_adapters else checkpoint


def has_average(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint contains moving averages of the trained parameters."""
    return any(name.startswith(_AVERAGE) for name in checkpoint.tensors)


def _averaged(checkpoint: Checkpoint) -> Checkpoint:
    """Replaces the parameters by their moving averages; frozen parameters have no averages."""
    if not has_average(checkpoint):
        raise ConversionError(
            f"{checkpoint.path} has no average of the parameters: its run did not set trainer.ema."
        )
    tensors = dict(checkpoint.tensors)
    for name in checkpoint.tensors:
        if name.startswith(_AVERAGE):
            target = f"target/{name.removeprefix(_AVERAGE)}"
            tensors[target] = dataclasses.replace(tensors.pop(name), name=target)
    return dataclasses.replace(checkpoint, tensors=tensors)


def _open_any(path: str | AnyPath, step: int | None) -> Checkpoint:
    path = nearest_copy(as_path(path))
    found = formats.find(path, step)
    kind, path = found or (None, path)
    if kind is not None and kind.files:
        return _open(path, formats.step_in(path.name), found)
    if not (kind or path.is_dir()):
        problem = "is a file" if path.exists() else "does not exist"
        raise ConversionError(
            f"{path} {problem}; expected a checkpoint_STEP directory or its parent."
        )
    if _UNFINISHED.search(path.name):
        raise IncompleteCheckpoint(
            f"{path} is an unfinished checkpoint: it is still being written, or writing it was "
            "interrupted. Use a directory named checkpoint_STEP."
        )
    if kind is not None and kind.step_name is None:
        if step is not None:
            raise ConversionError(
                f"{path} is a {kind.title} model, which has no steps. Leave out the step ({step})."
            )
        return _open(path, None, found)
    if kind is None and formats.step_in(path.name) is None:
        return _open_one_of(path, step)
    own_step = formats.step_in(path.resolve().name)
    if None not in (step, own_step) and step != own_step:
        raise ConversionError(
            f"{path} is the checkpoint of step {own_step}, but step {step} was requested."
        )
    return _open(path, own_step, found)


def _open(
    path: AnyPath, step: int | None, found: tuple[formats.Format, AnyPath] | None = None
) -> Checkpoint:
    kind, path = found or formats.find(path) or (None, path)
    if kind is None:
        raise IncompleteCheckpoint(
            f"{path} is not a complete checkpoint: it has neither a 'checkpoint' file (T5X) "
            "nor a 'state' directory (Orbax)."
        )
    check_small_files(path)
    return scanned.unrolled(kind.open(path, step))


def _open_one_of(path: AnyPath, step: int | None) -> Checkpoint:
    steps = dict(formats.list_checkpoints(path))
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
