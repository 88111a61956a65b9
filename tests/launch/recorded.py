"""Tiny runs that store the batches they read. Run by test_local.py through `mtf launch`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import fiddle as fdl
import numpy as np

import recipes
from mtf.config import Override, try_overrides
from mtf.data import loaders
from mtf.jobs import Train
from mtf.partitioning.settings import FULLY_SHARDED_AXIS_RULES
from tests import small

MESHES: dict[str, dict[str, Any]] = {
    "data": {},
    "fsdp": {"fsdp": 4},
    "model": {"num_partitions": 2},
    "model_across_processes": {"num_partitions": 4},
    "fsdp_and_model": {"fsdp": 2, "num_partitions": 2},
    "fully_sharded": {"num_partitions": 2, "logical_axis_rules": FULLY_SHARDED_AXIS_RULES},
}

_make_train_iterator = loaders.make_train_iterator


class _Recorded:
    """Batches, each of which is stored as STEP-SHARD.npz."""

    def __init__(self, batches: Any, folder: Path, step: int, shard: int) -> None:
        self._batches, self._folder = batches, folder
        self._step, self._shard = step, shard

    def __next__(self) -> dict[str, np.ndarray]:
        rows: dict[str, np.ndarray] = next(self._batches)
        with (self._folder / f"{self._step}-{self._shard}.npz").open("wb") as file:
            np.savez(file, **rows)
        self._step += 1
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def read(folder: Path, step: int) -> dict[str, np.ndarray]:
    """Returns the global batch that was read in a step, from 0."""
    files = sorted(folder.glob(f"{step}-*.npz"))
    parts = [np.load(file) for file in files]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0].files}


def _record(folder: Path, first_step: int) -> None:
    folder.mkdir(exist_ok=True)

    def make(data: Any, **shard: Any) -> Any:
        batches = _make_train_iterator(data, **shard)
        return _Recorded(batches, folder, first_step, shard["shard_id"])

    loaders.make_train_iterator = make  # type: ignore[assignment]


def from_step(first_step: int, folder: str) -> fdl.Config[Train]:
    """A run whose batches are stored in the folder."""
    _record(Path(folder), first_step)
    return recipes.pretrain_text()


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Several runs, one after another in the same processes. Their batches are in NAME-batches."""

    runs: tuple[Train, ...]

    def run(self) -> None:
        """Runs all."""
        for run in self.runs:
            _record(Path(f"{run.model_dir}-batches"), 0)
            run.run()

    def describe(self) -> str:
        """Nothing to describe."""
        return ""


def meshes(text: str, names: tuple[str, ...] = tuple(MESHES), steps: int = 3) -> fdl.Config[InTurn]:
    """A run of a few steps on each mesh; its directory is the mesh's name."""
    runs = []
    for name in names:
        settings = small.arguments(text, train_steps=steps, model_dir=name)[2:]
        overrides = [Override("set", setting) for setting in settings]
        config, problems = try_overrides(recipes.pretrain_text(), overrides)
        assert not problems, problems
        for field, value in MESHES[name].items():
            setattr(config.partitioner, field, value)
        runs.append(config)
    return fdl.Config(InTurn, runs=tuple(runs))
