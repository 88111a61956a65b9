"""What `run()` of a job returns. Imports no jax."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import CHECKPOINTS, saved_steps

if TYPE_CHECKING:
    from mtf.evaluation.report import TaskResult


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What came of a training run.

    Attributes:
      model_dir: the run directory.
      step: the last step of the run, absolute.
      stopped_by: the signal that ended the run before `train_steps`, such as "SIGTERM"; None: the
        run reached its last step.
      metrics: "KIND/…/NAME" → value, as last written to the run directory's `metrics.jsonl` files:
        "train/loss_per_target_token", "training_eval/held_out/accuracy". The keys are those that
        `checkpoint.save.metric_name_to_monitor` takes.
      checkpoints: step → directory, of all that were kept.
    """

    model_dir: Path
    step: int
    stopped_by: str | None
    metrics: dict[str, float]
    checkpoints: dict[int, Path]


def train_result(model_dir: Path, step: int, stopped_by: str | None = None) -> TrainResult:
    """Returns the result of a run whose files are all written."""
    folder = model_dir / CHECKPOINTS
    checkpoints = {saved: folder / f"checkpoint_{saved}" for saved in saved_steps(model_dir)}
    return TrainResult(model_dir, step, stopped_by, last_metrics(model_dir), checkpoints)


def last_metrics(model_dir: Path) -> dict[str, float]:
    """Returns the last line of each `metrics.jsonl`, as `TrainResult.metrics`."""
    found: dict[str, float] = {}
    for kind in METRIC_KINDS:
        for file in sorted((model_dir / kind).rglob("metrics.jsonl")):
            lines = file.read_text(encoding="utf-8").splitlines()
            values: dict[str, Any] = json.loads(lines[-1]) if lines else {}
            values.pop("step", None)
            name = file.parent.relative_to(model_dir).as_posix()
            found |= {f"{name}/{metric}": value for metric, value in values.items()}
    return found


@dataclasses.dataclass(frozen=True)
class EvaluateResult:
    """What came of a rank evaluation.

    Attributes:
      output_dir: where tables, scores and the figure are.
      tasks: the result of every task, in the order of the mixture.
    """

    output_dir: Path
    tasks: tuple[TaskResult, ...]


@dataclasses.dataclass(frozen=True)
class InferResult:
    """What came of an inference job.

    Attributes:
      files: the file of predictions or scores of each input file or task; of several shards the
        joined file once the last of them is done, till then this shard's own.
    """

    files: tuple[Path, ...]
