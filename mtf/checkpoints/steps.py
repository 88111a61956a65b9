"""Which steps a run has saved, by the names of directories alone. Imports no jax."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"

_STEP = re.compile(r"checkpoint_(\d+)")


def saved_steps(model_dir: str | Path) -> list[int]:
    """Returns the steps of a run directory's complete checkpoints, in order.

    A checkpoint gets its final name when all of it is on disk, so a name is enough.
    """
    folder = Path(model_dir) / CHECKPOINTS
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)
