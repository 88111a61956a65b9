"""Reads T5X's recorded figures."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).with_name("recorded")
NUM_DEVICES = (1, 4)
_NUM_VALUES = 4


@functools.cache
def read(name: str) -> dict[str, Any]:
    """Returns the figures of a case, or "decoding" or "versions"."""
    return json.loads((RECORDED / f"{name}.json").read_text())


def unpack(name: str, folder: Path) -> Path:
    """Unpacks a recorded checkpoint; returns checkpoint_STEP if it is T5X's, otherwise `folder`."""
    shutil.unpack_archive(RECORDED / f"{name}.tar.gz", folder, filter="data")
    return next(folder.glob("checkpoint_*"), folder)


def summary(state: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Returns, for each tensor, its norm, its sum, and values spread over it."""
    return {name: _summary(np.asarray(value)) for name, value in sorted(state.items())}


def _summary(array: np.ndarray) -> list[float]:
    flat = array.astype(np.float64).ravel()
    spread = flat[np.linspace(0, flat.size - 1, _NUM_VALUES).astype(int)]
    figures = [np.sqrt(np.sum(flat**2)), np.sum(flat), *spread]
    return [float(f"{figure:.9g}") for figure in figures]
