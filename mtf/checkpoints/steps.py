"""Which steps a run has saved, and which evaluations they owe. Imports no jax."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mtf.writing import write_atomically

CHECKPOINTS = "checkpoints"

_STEP = re.compile(r"checkpoint_(\d+)")


def saved_steps(model_dir: str | Path) -> list[int]:
    """Returns the steps of a run directory's checkpoints, in order; their names say: complete."""
    folder = Path(model_dir) / CHECKPOINTS
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)


def checkpoint_dir(model_dir: str | Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies in a run directory."""
    return Path(model_dir) / CHECKPOINTS / f"checkpoint_{step}"


# Prefix, among the metrics of a checkpoint, of an evaluation that was due and is not done.
_OWED = "owed/"


def owing(kinds: Iterable[str]) -> dict[str, float]:
    """Returns what a checkpoint stores in place of the metrics of evaluations that it owes."""
    return {f"{_OWED}{kind}": 1.0 for kind in kinds}


def owed_evaluations(model_dir: str | Path, step: int) -> tuple[str, ...]:
    """Returns the kinds of evaluation that a run's checkpoint owes."""
    measured = _measured(_metrics_file(model_dir, step))
    return tuple(name.removeprefix(_OWED) for name in measured if name.startswith(_OWED))


def add_measured(model_dir: str | Path, step: int, metrics: Mapping[str, float]) -> None:
    """Writes what a checkpoint owed into it; the file changes at once or not at all."""
    file = _metrics_file(model_dir, step)
    measured = {**_measured(file), **metrics}
    kept = {name: value for name, value in measured.items() if not name.startswith(_OWED)}
    write_atomically(file, json.dumps(kept))


def _metrics_file(model_dir: str | Path, step: int) -> Path:
    return checkpoint_dir(model_dir, step) / "metrics" / "metrics"  # as Orbax names it


def _measured(file: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    return found
