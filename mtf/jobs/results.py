"""What a job's `run()` returns. Imports no jax."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import CHECKPOINTS, saved_steps

if TYPE_CHECKING:
    from mtf.evaluation.report import TaskResult


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The outcome of a training run.

    Attributes:
      model_dir: the run directory.
      step: the last step of the run, absolute.
      stopped_by: the signal that ended the run before `train_steps`, such as "SIGTERM"; None if the
        run reached its last step.
      metrics: "KIND/…/NAME" → value, as last written to the run directory's `metrics.jsonl` files:
        "train/loss_per_target_token", "training_eval/held_out/accuracy". The keys are those that
        `checkpoint.save.metric_name_to_monitor` takes.
      checkpoints: step → directory, for all that were kept.
    """

    model_dir: Path
    step: int
    stopped_by: str | None
    metrics: dict[str, float]
    checkpoints: dict[int, Path]


def train_result(model_dir: Path, step: int, stopped_by: str | None = None) -> TrainResult:
    """Returns the result of a run that has written all its files."""
    folder = model_dir / CHECKPOINTS
    checkpoints = {saved: folder / f"checkpoint_{saved}" for saved in saved_steps(model_dir)}
    metrics: dict[str, float] = {}
    for file in (f for k in METRIC_KINDS for f in sorted((model_dir / k).rglob("metrics.jsonl"))):
        lines = file.read_text(encoding="utf-8").splitlines()
        name = file.parent.relative_to(model_dir).as_posix()
        values = json.loads(lines[-1]) if lines else {}
        metrics |= {f"{name}/{key}": value for key, value in values.items() if key != "step"}
    return TrainResult(model_dir, step, stopped_by, metrics, checkpoints)


@dataclasses.dataclass(frozen=True)
class EvaluateResult:
    """The directory of a rank evaluation's files, and its results in the mixture's order."""

    output_dir: Path
    tasks: tuple[TaskResult, ...]


@dataclasses.dataclass(frozen=True)
class InferResult:
    """The outcome of an inference job.

    Attributes:
      files: the predictions or scores of each input file or task. With several shards, the joined
        file once the last shard is done, until then this shard's own.
    """

    files: tuple[Path, ...]
