"""The settings of an evaluation job. Does not import JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.base.checks import AT_LEAST_ONE, POSITIVE, check_fields, one_of
from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import HANG_SECONDS
from mtf.checkpoints.steps import StepChoice, chosen_steps
from mtf.data.settings import TaskMixtureConfig
from mtf.evaluation.settings import RankFilesConfig, check_one_prediction
from mtf.inference.decoding.settings import DecodingConfig
from mtf.jobs.job import Job
from mtf.jobs.results import EvaluateResult
from mtf.partitioning.settings import PartitionerConfig


@dataclasses.dataclass(frozen=True)
class Evaluate(Job[EvaluateResult]):
    """Evaluates one checkpoint, or several checkpoints of a run, on tasks.

    For ranked tasks (`*_score_eval`), the most likely answer choice is the prediction, as in T0.
    For other tasks, predictions are generated and scored against the targets with the task's
    metrics, as in T5X's `infer_eval`. docs/evaluation.md describes the files and metrics.

    Attributes:
      checkpoint: a run directory (its latest checkpoint is used), an mtf or T5X checkpoint, or a
        Hugging Face directory; required to run the job.
      data: a mixture or task, or files with examples to rank. The `eval_split` of a mixture or task
        is read from the cache in `cache_dir` or, if that is None, from the tasks' datasets.
      batch_size: the number of examples of maximum length in a batch. In ranked tasks, several
        shorter examples can share a row.
      dtype: the dtype of the parameters and activations. In float32, the predictions for ranked
        tasks do not depend on the batch size or the devices.
      partitioner: how the model and the batch are split across devices.
      output_dir: the directory for predictions, tables and figures; None for `runs/evaluate-TIME`
        or, if `checkpoint_steps` is set, `evaluation/NAME` in the run directory. An interrupted job
        continues if it is restarted with the same directory.
      decoding: the settings for generating predictions; None for T5X's beam search with one beam
        and at most `data.task_feature_lengths["targets"]` tokens.
      checkpoint_steps: the steps of a run to evaluate. They are given as "all", as step numbers, or
        as a range "FIRST:LAST" or "FIRST:LAST:PERIOD", in which LAST is included and FIRST and LAST
        can be omitted. None to evaluate one checkpoint.
      metric_name_to_monitor: the metric that determines the best of several steps, such as
        "TASK/rouge1" (see docs/evaluation.md); None for `mean_accuracy` if there are ranked tasks,
        and for `mean_score` otherwise.
      metric_mode: whether the largest value ("max") or the smallest value ("min") is the best.
      hang_seconds: the number of seconds without progress, such as a finished batch, after which
        the stack traces of all threads are printed and the job ends with exit status 1; four times
        as many while the job starts and loads a checkpoint. None for no limit.
    """

    checkpoint: str | None
    data: TaskMixtureConfig | RankFilesConfig
    batch_size: int = 32
    dtype: Literal["float32", "bfloat16"] = "float32"
    partitioner: PartitionerConfig = PartitionerConfig()
    output_dir: str | None = None
    decoding: DecodingConfig | None = None
    checkpoint_steps: StepChoice | None = None
    metric_name_to_monitor: str | None = None
    metric_mode: Literal["max", "min"] = "max"
    hang_seconds: float | None = HANG_SECONDS

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "batch_size")
        check_fields(self, one_of("float32", "bfloat16"), "dtype")
        check_fields(self, one_of("max", "min"), "metric_mode")
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        check_one_prediction(self.decoding)
        if self.checkpoint_steps is not None:
            chosen_steps(self.checkpoint_steps, "checkpoint_steps")
        elif self.metric_name_to_monitor is not None:
            raise UserError(
                "metric_name_to_monitor needs several checkpoints, but checkpoint_steps is None. "
                "Set checkpoint_steps, for example to 'all', or set metric_name_to_monitor to None."
            )
