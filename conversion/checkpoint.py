"""Opening a checkpoint of any layout that is read here.

A checkpoint is a flat dict of tensors under T5X's names, read slice by slice when asked:

    checkpoint = open_checkpoint("gs-copy/t5_1_1_small/checkpoint_1000000")
    checkpoint.tensors["target/token_embedder/embedding"].read((slice(0, 10),))
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from conversion import huggingface_reader, orbax, t5x
from conversion.errors import ConversionError, IncompleteCheckpoint
from conversion.tensor import Checkpoint

_logger = logging.getLogger(__name__)

_STEP = re.compile(r"checkpoint_(\d+)")
# Orbax writes NAME.orbax-checkpoint-tmp[-N], T5X NAME.tmp-N, and both rename at the end.
_UNFINISHED = re.compile(r"(\.|-)(orbax-checkpoint-)?tmp(-|$)")


def list_checkpoints(directory: str | Path) -> list[tuple[int, Path]]:
    """Returns the `checkpoint_{step}` folders of `directory`, or of its `checkpoints/`, by step.

    Directories that a writer has not renamed yet are not among them.
    """
    directory = Path(directory)
    inside = directory / "checkpoints"
    found = []
    for child in (inside if inside.is_dir() else directory).iterdir():
        match = _STEP.fullmatch(child.name)
        if match and child.is_dir():
            found.append((int(match[1]), child))
    return sorted(found)


def open_checkpoint(path: str | Path, step: int | None = None) -> Checkpoint:
    """Opens a checkpoint; reads names, shapes and types, and no tensor.

    Args:
      path: a `checkpoint_{step}` directory of any layout, the `state` directory in an Orbax one,
        a directory of `checkpoint_{step}` directories, a run directory, or a Hugging Face
        directory.
      step: which of several; the latest complete one by default.

    Raises:
      ConversionError: nothing at `path` can be read as a checkpoint.
      IncompleteCheckpoint: the one asked for (or every one) is incomplete.
    """
    path = Path(path)
    if not path.exists():
        raise ConversionError(f"There is no checkpoint at {path}: no such directory.")
    if not path.is_dir():
        raise ConversionError(
            f"{path} is a file; expected a directory (checkpoint_STEP, or one that contains such)."
        )
    if _UNFINISHED.search(path.name):
        raise IncompleteCheckpoint(
            f"{path} is a checkpoint that was never finished: its writer renames the directory "
            "when all is written."
        )
    if path.name == "state" and orbax.is_state(path):
        path = path.parent
    if huggingface_reader.is_huggingface(path):
        if step is not None:
            raise ConversionError(f"{path} is a Hugging Face model, which has no step {step}.")
        return huggingface_reader.open_huggingface(path)
    if _is_checkpoint(path):
        found = _STEP.fullmatch(path.resolve().name)
        own_step = int(found[1]) if found else None
        if step is not None and own_step is not None and step != own_step:
            raise ConversionError(f"{path} is the checkpoint of step {own_step}, not {step}.")
        return _open(path, own_step)
    return _open_one_of(path, step)


def _is_checkpoint(path: Path) -> bool:
    return (
        (path / "checkpoint").is_file()
        or (path / "state").is_dir()
        or orbax.is_state(path)
        or bool(_STEP.fullmatch(path.name))
    )


def _open(path: Path, step: int | None) -> Checkpoint:
    if (path / "checkpoint").is_file():
        return t5x.open_zarr(path, step)
    if (path / "state").is_dir():
        return orbax.open_orbax(path, path / "state", step)
    if orbax.is_state(path):
        return orbax.open_orbax(path, path, step)
    raise IncompleteCheckpoint(
        f"{path} is not a complete checkpoint: it has neither a 'checkpoint' file (T5X) "
        "nor a 'state' directory (Orbax)."
    )


def _open_one_of(path: Path, step: int | None) -> Checkpoint:
    steps = dict(list_checkpoints(path))
    if not steps:
        raise ConversionError(_no_checkpoint(path))
    if step is not None:
        if step not in steps:
            near = sorted(sorted(steps, key=lambda s: abs(s - step))[:5])
            raise ConversionError(
                f"{path} has no checkpoint of step {step}; it has {', '.join(map(str, near))}"
                f"{' and others' if len(steps) > len(near) else ''}."
            )
        return _open(steps[step], step)
    reasons = []
    for candidate in sorted(steps, reverse=True):
        try:
            checkpoint = _open(steps[candidate], candidate)
        except IncompleteCheckpoint as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            _logger.warning("Passed over an incomplete checkpoint: %s", reason)
        return checkpoint
    raise IncompleteCheckpoint(f"{path} has no complete checkpoint. The latest: {reasons[0]}")


def _no_checkpoint(path: Path) -> str:
    if any(path.glob("model.ckpt-*.index")):
        return f"{path} is a Mesh TensorFlow checkpoint; reading those is not supported yet."
    unfinished = [child.name for child in path.rglob("*") if _UNFINISHED.search(child.name)]
    hint = f" (only unfinished: {', '.join(sorted(unfinished)[:3])})" if unfinished else ""
    return (
        f"There is no checkpoint in {path}{hint}; expected checkpoint_STEP directories, "
        "a 'checkpoint' file (T5X), a 'state' directory (Orbax), or model.safetensors (Hugging "
        "Face)."
    )
