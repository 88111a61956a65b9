"""The job of evaluation. Imports no jax until it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from mtf.checkpoints.steps import CHECKPOINTS, StepChoice, check_step_choice, select_steps
from mtf.checks import AT_LEAST_ONE, POSITIVE, check_fields, one_of
from mtf.cluster.process_files import FOLDER
from mtf.data.settings import TaskMixtureConfig
from mtf.decoding.settings import DecodingConfig, one_beam
from mtf.errors import UserError
from mtf.evaluation.settings import UNFINISHED, RankFilesConfig, check_one_prediction, data_name
from mtf.jobs.results import EvaluateResult
from mtf.partitioning.settings import PartitionerConfig
from mtf.progress import duration
from mtf.run_end import END_FILE
from mtf.storage import AnyPath, StorePath, as_path, is_remote
from mtf.tasks.missing import describe_missing
from mtf.text.vocabularies import SentencePieceVocabulary
from mtf.writing import LOCK_FILE, locked, os_errors_refused

if TYPE_CHECKING:
    from mtf.cluster.heartbeat import Heartbeat
    from mtf.evaluation.evaluator import Evaluator
    from mtf.evaluation.report import TaskResult
    from mtf.evaluation.tasks import EvaluationTask
    from mtf.inference.opening import Opened
    from mtf.jobs.description import Description
    from mtf.partitioning.mesh import PjitPartitioner


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluates a checkpoint, or several checkpoints of a run, on tasks.

    For ranked tasks (`*_score_eval`), the most likely answer choice is the prediction, as in T0.
    For other tasks, targets are generated and compared by the task's metrics, as in T5X's
    `infer_eval`. docs/evaluation.md describes the files and metrics.

    Attributes:
      checkpoint: a run directory (its latest checkpoint), a checkpoint of mtf or T5X, or a Hugging
        Face directory; must be set to run.
      data: a mixture or task, whose `eval_split` is read from the cache in `cache_dir` or, if that
        is None, from its datasets; or files of examples to rank.
      batch_size: number of examples of maximum length in a batch; shorter examples to rank share
        rows.
      dtype: dtype of parameters and activations. In float32, the predictions of ranked tasks do not
        depend on the batch size or the devices.
      partitioner: how model and batch are split over devices.
      output_dir: directory for predictions, tables and figures; None: `runs/evaluate-TIME`, or with
        `checkpoint_steps` `evaluation/NAME` in the run directory. An interrupted job that is
        started again with the same directory continues.
      decoding: decoding of generated targets; None: T5X's beam search with one beam, up to
        `data.task_feature_lengths["targets"]` tokens.
      checkpoint_steps: evaluates several checkpoints of a run directory in turn: "all",
        "FIRST:LAST" or "FIRST:LAST:PERIOD" (both included, and either can be omitted), or steps;
        None: only one checkpoint.
      metric_name_to_monitor: with `checkpoint_steps`, the metric that decides which step is the
        best, such as "TASK/rouge1" (see docs/evaluation.md); None: `mean_accuracy` if there are
        ranked tasks, otherwise `mean_score`.
      metric_mode: whether the largest ("max") or the smallest value ("min") is the best.
      hang_seconds: seconds without progress, such as a batch, after which a process writes the
        stacks of all threads and the job ends with exit status 1. Starting and loading a checkpoint
        may take four times as long. None: never.
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
    hang_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "batch_size")
        check_fields(self, one_of("float32", "bfloat16"), "dtype")
        check_fields(self, one_of("max", "min"), "metric_mode")
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        check_one_prediction(self.decoding)
        if self.checkpoint_steps is not None:
            check_step_choice(self.checkpoint_steps, "checkpoint_steps")
        elif self.metric_name_to_monitor is not None:
            raise UserError(
                "metric_name_to_monitor chooses among several checkpoints; set checkpoint_steps, "
                "for example to 'all', or metric_name_to_monitor to None."
            )

    def run(self) -> EvaluateResult:
        """Evaluates, writes predictions, tables and figures, and prints a summary.

        If the input cannot be used, raises UserError and writes nothing.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.watched import watched

        with watched(job.hang_seconds) as heartbeat:
            return job._run(heartbeat)

    def _run(self, heartbeat: Heartbeat) -> EvaluateResult:
        from mtf.jobs.watched import recorded
        from mtf.partitioning.mesh import PjitPartitioner
        from mtf.partitioning.processes import from_first_process, is_first_process

        # All errors in the input are found here, before anything is written.
        started = time.perf_counter()
        chosen = from_first_process(self._steps())
        output_dir = as_path(from_first_process(str(self._output_dir())))
        if is_first_process():
            _check_output(output_dir, several=chosen is not None)
        opened = self._open(chosen[0] if chosen else None)
        partitioner = PjitPartitioner.create(self.partitioner)
        tasks = self._tasks(opened)
        metric = None if chosen is None else self._metric(tasks)
        evaluator = self._evaluator(tasks, partitioner, heartbeat)
        missing = evaluator.missing
        if missing and is_first_process():
            print(describe_missing(data_name(self.data), len(tasks), missing))
        with contextlib.ExitStack() as stack:
            stack.enter_context(os_errors_refused(output_dir, "output_dir"))
            if is_first_process():
                stack.enter_context(locked(output_dir, "output_dir"))
            stack.enter_context(recorded(heartbeat, output_dir))
            if chosen is None or metric is None:
                result = self._evaluate_one(evaluator, opened, output_dir)
            else:
                result = self._evaluate_steps(evaluator, chosen, metric, output_dir)
        if is_first_process():
            print(f"time           {duration(time.perf_counter() - started)}", flush=True)
        return result

    def _evaluate_one(
        self, evaluator: Evaluator, opened: Opened, output_dir: AnyPath
    ) -> EvaluateResult:
        from mtf.evaluation import report
        from mtf.partitioning.processes import is_first_process

        results = evaluator.evaluate(opened, output_dir)
        if is_first_process():
            report.write_events(output_dir, {opened.checkpoint.step or 0: results})
            print(report.summary(results, output_dir))
        return EvaluateResult(output_dir, tuple(results))

    def _evaluate_steps(
        self, evaluator: Evaluator, chosen: Sequence[int], metric: str, output_dir: AnyPath
    ) -> EvaluateResult:
        """Evaluates the checkpoints that are not done, and finds the best step."""
        from mtf.evaluation.steps import Steps
        from mtf.partitioning.processes import is_first_process

        by_step: dict[int, list[TaskResult]] = {}
        checkpoints: dict[int, AnyPath] = {}
        found = Steps(by_step, checkpoints, metric, self.metric_mode)
        for step in chosen:
            opened, folder = self._open(step), output_dir / f"checkpoint_{step}"
            results = evaluator.finished(opened, folder)
            if results is None:
                results = evaluator.evaluate(opened, folder)
            elif is_first_process():
                print(f"{opened.checkpoint.path}: already evaluated in {folder}", flush=True)
            by_step[step], checkpoints[step] = results, opened.checkpoint.path
            if is_first_process():
                found.write(output_dir)
        if is_first_process():
            print(found.summary(output_dir))
        best = found.best
        return EvaluateResult(
            output_dir,
            tuple(by_step[chosen[-1] if best is None else best]),
            {step: tuple(results) for step, results in by_step.items()},
            best,
            None if best is None else checkpoints[best],
        )

    def describe(self) -> Description:
        """Returns the settings, and checks of the checkpoint and the data; allocates nothing.

        Examples of datasets are not read. Raises UserError if a type is wrong; the description
        contains all other problems.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.description import Checks, Description, about_model
        from mtf.partitioning.planning import plan_devices

        checks = Checks()
        steps: list[int] | None = None
        if job.checkpoint_steps is not None:
            steps = checks.add("steps", job._steps, lambda found: ", ".join(map(str, found or ())))
        checks.add("output_dir", lambda: job._check_output_dir(several=steps is not None))
        opened = checks.add(
            "checkpoint",
            lambda: job._open(steps[0] if steps else None),
            about_model,
        )
        tasks: Sequence[EvaluationTask] = ()
        if opened is not None or isinstance(job.data, TaskMixtureConfig):
            found = checks.add("tasks", lambda: job._tasks(opened, download=False), _about_tasks)
            tasks = found or ()
        if steps is not None and tasks:
            checks.add("best step by", lambda: f"{job._metric(tasks)} ({job.metric_mode})")
        rows = {
            "data": data_name(job.data),
            "dtype": job.dtype,
            **plan_devices(job.partitioner).rows(),
            "batch": f"{job.batch_size} examples of maximum length, or more shorter ones",
            **checks.rows,
            **job._about_datasets(tasks),
        }
        return Description(rows, tuple(checks.problems))

    def _check_output_dir(self, several: bool) -> str:
        output_dir = self._output_dir()
        _check_output(output_dir, several)
        return str(output_dir)

    def _about_datasets(self, tasks: Sequence[EvaluationTask]) -> dict[str, str]:
        """Returns rows on the decoding, and on the prompts of each dataset."""
        from mtf.evaluation.text_data import TextTask

        rows = {}
        if any(isinstance(task, TextTask) for task in tasks):
            decoding = self._decoding()
            beams = f", num_beams {decoding.num_beams}" if decoding.method == "beam" else ""
            rows["decoding"] = f"{decoding.method}{beams}, max_length {decoding.max_length}"
        for dataset in dict.fromkeys(task.dataset for task in tasks):
            rows[dataset] = _prompts([task for task in tasks if task.dataset == dataset])
        return rows

    def _evaluator(
        self, tasks: Sequence[EvaluationTask], partitioner: PjitPartitioner, heartbeat: Heartbeat
    ) -> Evaluator:
        from mtf.evaluation.evaluator import Evaluator

        lengths = self.data.task_feature_lengths
        return Evaluator(
            tasks,
            {"data": data_name(self.data), "split": getattr(self.data, "eval_split", None)},
            lengths,
            self._decoding(),
            self.batch_size,
            self.dtype,
            partitioner,
            heartbeat,
        )

    def _metric(self, tasks: Sequence[EvaluationTask]) -> str:
        """Returns the metric that decides which step is the best."""
        from mtf.evaluation import steps

        metric = self.metric_name_to_monitor or steps.default_metric(tasks)
        steps.check_metric(metric, tasks)
        return metric

    def _decoding(self) -> DecodingConfig:
        return self.decoding or one_beam(self.data.task_feature_lengths["targets"])

    def _steps(self) -> list[int] | None:
        """Returns the steps to evaluate, or None for a single checkpoint."""
        from mtf.inference.opening import list_steps

        if self.checkpoint_steps is None or self.checkpoint is None:
            return None
        return select_steps(self.checkpoint_steps, list_steps(self.checkpoint), "checkpoint_steps")

    def _output_dir(self) -> AnyPath:
        if self.output_dir is not None:
            return as_path(self.output_dir)
        if self.checkpoint_steps is None or self.checkpoint is None:
            return as_path(time.strftime("runs/evaluate-%Y%m%d-%H%M%S"))
        run = as_path(self.checkpoint)
        run = run.parent if run.name == CHECKPOINTS else run
        return run / "evaluation" / re.sub(r"[^\w.+-]+", "_", data_name(self.data))

    def _open(self, step: int | None = None) -> Opened:
        from mtf.inference.opening import open_model

        if self.checkpoint is None:
            raise UserError(
                "checkpoint is not set; set it to a run directory, a checkpoint_STEP directory or "
                "a Hugging Face directory: --set checkpoint=PATH"
            )
        asked = self.data.vocabulary
        # The address of a released vocabulary is the recipe's default; a run has its own.
        if isinstance(asked, SentencePieceVocabulary) and is_remote(asked.path):
            return open_model(self.checkpoint, step=step, default_vocabulary=asked)
        return open_model(self.checkpoint, step=step, vocabulary=asked)

    def _tasks(self, opened: Opened | None, *, download: bool = True) -> Sequence[EvaluationTask]:
        """Returns the tasks for a checkpoint; files need one."""
        from mtf.evaluation.tasks import evaluation_tasks

        data = self.data
        if opened is not None:
            data = dataclasses.replace(data, vocabulary=opened.vocabulary)
            if isinstance(data, RankFilesConfig) and data.inputs_add_eos is None:
                add_eos = opened.eos_is_known and opened.inputs_add_eos
                data = dataclasses.replace(data, inputs_add_eos=add_eos)
        return evaluation_tasks(data, download=download)


def _about_tasks(tasks: Sequence[EvaluationTask]) -> str:
    return f"{sum(task.load is not None for task in tasks)} of {len(tasks)} tasks have data"


def _prompts(tasks: Sequence[EvaluationTask]) -> str:
    """Describes the tasks of a dataset, for `describe`."""
    reasons = [task.absent for task in tasks if task.absent is not None]
    names = [name for task in tasks for name in getattr(task, "metrics", ("ranked",))]
    text = f"{len(tasks) - len(reasons)} of {len(tasks)} prompts"
    text += f" ({', '.join(dict.fromkeys(names))})"
    if not reasons:
        return text
    also = " (and other reasons)" * (len(set(reasons)) > 1)
    return f"{text}; the other {len(reasons)} have no data: {reasons[0]}{also}"


def _check_output(output_dir: AnyPath, several: bool) -> None:
    """Refuses a directory with files, except those of an interrupted job or of other steps."""
    if not isinstance(output_dir, StorePath):
        there = next(p for p in (output_dir, *output_dir.absolute().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise UserError(
                f"output_dir: {output_dir} cannot be created: {there} is not a writable directory."
            )
    names = {path.name for path in output_dir.iterdir()} if output_dir.exists() else set()
    if several:
        continues = any(name.startswith("checkpoint_") for name in names)
    else:
        continues = UNFINISHED in names
    if names - {LOCK_FILE, END_FILE, FOLDER} and not continues:
        raise UserError(
            f"output_dir: {output_dir} is not empty, and results are never overwritten. Choose "
            "another directory, or set output_dir=None for the default one."
        )
