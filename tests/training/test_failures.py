"""Runs whose directory is deleted in the meantime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import RunError
from mtf.checkpoints.manager import CheckpointManager, failures_explained
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.training import watch
from mtf.training.settings import ScheduleConfig
from tests.training.test_not_finite import Batches, make_trainer, train


class Deletes(Batches):
    """Deletes a directory before the third batch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def __next__(self) -> dict[str, Any]:
        self.number += 1
        if self.number == 3:
            while self.folder.exists():  # A checkpoint may be written at the same time.
                shutil.rmtree(self.folder, ignore_errors=True)
        return super().__next__()


@pytest.mark.parametrize("period", [2, 100])
def test_a_deleted_run_directory_is_not_created_again(tmp_path: Path, period: int) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    manager = CheckpointManager(run_dir, SaveCheckpointConfig(period=period))
    trainer = make_trainer(stats_period=1, eval_period=None)
    said = f"{run_dir}, or a part of it, was deleted during the run."
    with pytest.raises(RunError) as error, failures_explained(manager):
        train(trainer, run_dir, batches=Deletes(run_dir), manager=manager)
    assert str(error.value) == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rate", "advised"), [(0.01, "0.005"), (1e6, "0.001")])
def test_the_advised_learning_rate_is_one_that_trains(
    tmp_path: Path, rate: float, advised: str
) -> None:
    trainer = make_trainer(ScheduleConfig("constant", rate))
    manager = CheckpointManager(tmp_path / "a run", SaveCheckpointConfig())
    said = str(watch.Watch(trainer, manager, None, None).failure("It diverged."))  # type: ignore[arg-type]
    assert f"base_learning_rate={advised}\n" in said
    assert f"--from '{tmp_path}/a run' --set" in said
