"""The results that a job's `run()` returns. Does not import JAX."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mtf.base import strict_json
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import CHECKPOINTS, saved_steps
from mtf.storage import AnyPath

if TYPE_CHECKING:
    from mtf.evaluation.report import TaskResult


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The outcome of a training run.

    Attributes:
      model_dir: the run directory.
      step: the last step; steps are counted from the start of pretraining.
      stopped_by: the name of the signal that ended the run before `train_steps`, such as "SIGTERM";
        None if no signal ended the run.
      metrics: the last values in the run's `metrics.jsonl` files, under the names that
        `checkpoint.save.metric_name_to_monitor` accepts, such as "training_eval/held_out/accuracy".
      checkpoints: a dict mapping the steps of the kept checkpoints to their directories.
    """

    model_dir: AnyPath
    step: int
    stopped_by: str | None
    metrics: dict[str, float]
    checkpoints: dict[int, AnyPath]


def train_result(model_dir: AnyPath, step: int, stopped_by: str | None = None) -> TrainResult:
    """Returns the result of a run; reads the metrics and the saved steps from its directory."""
    folder = model_dir / CHECKPOINTS
    checkpoints = {saved: folder / f"checkpoint_{saved}" for saved in saved_steps(model_dir)}
    metrics: dict[str, float] = {}
    for kind in METRIC_KINDS:
        files: list[AnyPath] = sorted((model_dir / kind).rglob("metrics.jsonl"), key=str)
        for file in files:
            lines = strict_json.read_lines(file)
            name = str(file.parent).removeprefix(f"{model_dir}/")
            values = lines[-1] if lines else {}
            metrics |= {f"{name}/{key}": value for key, value in values.items() if key != "step"}
    return TrainResult(model_dir, step, stopped_by, metrics, checkpoints)


@dataclasses.dataclass(frozen=True)
class EvaluateResult:
    """The results of an evaluation.

    Attributes:
      output_dir: the directory that contains the predictions, tables and figures.
      tasks: the results of the tasks, in the order of the mixture. If several checkpoints were
        evaluated, these are the results of the best one or, if none is the best, of the last one.
      steps: the results of each step if `checkpoint_steps` is set; otherwise, an empty dict.
      best_step, best_checkpoint: the best step and its checkpoint; None if `checkpoint_steps` is
        not set or no step has a value of the metric.
    """

    output_dir: AnyPath
    tasks: tuple[TaskResult, ...]
    steps: dict[int, tuple[TaskResult, ...]] = dataclasses.field(default_factory=dict)
    best_step: int | None = None
    best_checkpoint: AnyPath | None = None


@dataclasses.dataclass(frozen=True)
class InferResult:
    """The output files of an inference job, one for each input file or task.

    If there are several shards, these are the joined files if all shards are complete, and
    otherwise the files of the shard that the job has processed.
    """

    files: tuple[AnyPath, ...]
