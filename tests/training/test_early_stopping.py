"""Early stopping: when a run ends, what it says, and that a resumed run ends at the same step."""

from __future__ import annotations

import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.config import apply_overrides, build, resolve
from mtf.training.early_stopping import EarlyStopping
from mtf.training.evaluations import LossEvaluation
from mtf.training.settings import TrainerConfig
from tests import small
from tests.test_evaluation_in_training import arguments, write_pairs

METRIC = "training_eval/held_out/loss"


@pytest.mark.parametrize(
    ("mode", "patience", "values", "over_at", "best"),
    [
        ("min", 2, [3.0, 2.0, 2.5, 2.2], 4, 2),
        ("min", 2, [3.0, 2.0, 2.5, 1.9, 1.9, 1.9], 6, 4),  # An equal value is no improvement.
        ("max", 1, [3.0, 4.0, 4.0], 3, 2),
        ("max", 1, [3.0, math.inf], 2, 1),
        ("min", 2, [math.nan, None], 2, None),
        ("min", None, [1.0, 2.0, 3.0], None, 1),
    ],
)
def test_patience(
    mode: str,
    patience: int | None,
    values: list[float | None],
    over_at: int | None,
    best: int | None,
) -> None:
    counts = EarlyStopping(METRIC, mode, patience)
    over = []
    for step, value in enumerate(values, start=1):
        counts.add(step, value)
        over.append(counts.is_over)
    assert over == [step == over_at for step in range(1, len(values) + 1)]
    assert counts.best_step == best


def _command(folder: Path, **settings: Any) -> list[str]:
    """The largest loss is the best, so the first evaluation of a run that learns is the best."""
    patience = {"trainer__early_stopping_patience": 2, "evaluator": None}
    return arguments(folder / "pairs.jsonl", **patience, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `whole`, a run that ended early, and what it said."""
    folder = tmp_path_factory.mktemp("early")
    write_pairs(folder)
    said = small.run(_command(folder, model_dir="whole"), folder)
    (folder / "said.txt").write_text(said)
    return folder


def test_a_run_ends_when_its_metric_does_not_improve(folder: Path) -> None:
    losses = [
        line["loss"] for line in small.read_metrics(folder / "whole", "training_eval/held_out")
    ]
    assert len(losses) == 3 and max(losses) == losses[0]
    assert small.steps(folder / "whole") == [10, 20, 30]
    said = (folder / "said.txt").read_text()
    why = f"{METRIC} has not improved since step 10 (2 evaluations; "
    assert f"step 30: training ends early: {why}" in said
    assert f"\nended early    {why}" in said
    best = (folder / "whole" / "checkpoints" / "checkpoint_10").resolve()
    assert f"\nbest           {best} ({METRIC} {losses[0]:.4g})" in said
    assert f"\nexport         python -m mtf.convert {best} whole/hf --to hf" in said


def test_a_run_that_ended_early_is_finished(folder: Path) -> None:
    said = small.run(["--from", "whole"], folder)
    assert "is at step 30 of 60, where training ended early because " in said
    assert "--from whole --set trainer.early_stopping_patience=None" in said
    assert small.steps(folder / "whole") == [10, 20, 30]


@pytest.mark.slow
def test_a_resumed_run_ends_at_the_same_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the evaluation of step 20, and again in that of step 30, which is the last."""
    evaluate = LossEvaluation.run
    calls = iter(range(5))  # Of 10; of 20, stopped; of 20 again; of 30, stopped; of 30 again.

    def interrupted(self: LossEvaluation, *rest: Any) -> Any:
        if next(calls) in (1, 3):
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, *rest)

    monkeypatch.setattr(LossEvaluation, "run", interrupted)
    small.run(_command(folder, model_dir="stopped"), folder)
    assert small.steps(folder / "stopped") == [10, 20]
    small.run(["--from", "stopped"], folder)
    said = small.run(["--from", "stopped"], folder)
    assert "\nended early " in said
    assert next(calls, None) is None
    small.assert_same_end(folder / "stopped", folder / "whole", 30)


def test_early_stopping_needs_a_metric(folder: Path) -> None:
    command = _command(folder, checkpoint__save__metric_name_to_monitor=None)
    config = apply_overrides(resolve(command[0]), command[2:])
    config.checkpoint.save.metric_mode = None
    with pytest.raises(UserError, match="early_stopping_patience needs a metric"):
        build(config)
    with pytest.raises(UserError, match="early_stopping_patience must be at least 1"):
        dataclasses.replace(TrainerConfig(), early_stopping_patience=0)
