"""Runs and describes an evaluation job."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Sequence

from mtf.base.downloads import writable
from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.processes.records import FOLDER
from mtf.base.progress import duration
from mtf.base.run_end import END_FILE
from mtf.base.writing import LOCK_FILE
from mtf.checkpoints.steps import CHECKPOINTS, select_steps
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.missing import describe_missing
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.evaluation import report, steps
from mtf.evaluation.evaluator import UNFINISHED, Evaluator
from mtf.evaluation.report import TaskResult
from mtf.evaluation.settings import RankFilesConfig, data_name
from mtf.evaluation.tasks import EvaluationTask, evaluation_tasks, missing_tasks
from mtf.inference import loading
from mtf.inference.decoding.settings import DecodingConfig, one_beam
from mtf.inference.opening import Opened, list_steps, open_model
from mtf.jobs.description import Description
from mtf.jobs.evaluate.settings import Evaluate
from mtf.jobs.results import EvaluateResult
from mtf.jobs.watched import in_output_dir, watched
from mtf.partitioning.devices import run_devices
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import from_first_process, is_first_process
from mtf.storage import AnyPath, as_path, has_scheme


def run(job: Evaluate) -> EvaluateResult:
    """Runs a job whose field types have been checked."""
    with watched(job.hang_seconds) as heartbeat:
        return _run(job, heartbeat)


def _run(job: Evaluate, heartbeat: Heartbeat) -> EvaluateResult:
    # Check all input before anything is written.
    started = time.perf_counter()
    chosen = from_first_process(_steps(job))
    output_dir = as_path(from_first_process(str(_output_dir(job))))
    if is_first_process():
        _check_output(output_dir, several=chosen is not None)
    opened = open_checkpoint(job, chosen[0] if chosen else None)
    partitioner = PjitPartitioner.create(job.partitioner)
    tasks = _tasks(job, opened)
    asked = job.metric_name_to_monitor
    metric = None if chosen is None else steps.monitored_metric(asked, tasks)
    evaluator = Evaluator(
        tasks,
        {"data": data_name(job.data), "split": getattr(job.data, "eval_split", None)},
        job.data.task_feature_lengths,
        _decoding(job),
        job.batch_size,
        job.dtype,
        partitioner,
        heartbeat,
    )
    if (missing := missing_tasks(tasks)) and is_first_process():
        print(describe_missing(data_name(job.data), len(tasks), missing))
    with in_output_dir(heartbeat, output_dir):
        if chosen is None or metric is None:
            results = evaluator.evaluate(opened, output_dir, events=True)
            if is_first_process():
                print(report.summary(results, output_dir))
            result = EvaluateResult(output_dir, tuple(results))
        else:
            result = _evaluate_steps(job, evaluator, chosen, metric, output_dir)
    if is_first_process():
        print(f"time           {duration(time.perf_counter() - started)}", flush=True)
    return result


def _evaluate_steps(
    job: Evaluate, evaluator: Evaluator, chosen: Sequence[int], metric: str, output_dir: AnyPath
) -> EvaluateResult:
    """Evaluates the checkpoints that have no results yet, and determines the best step."""
    by_step: dict[int, list[TaskResult]] = {}
    checkpoints: dict[int, AnyPath] = {}
    found = steps.Steps(by_step, checkpoints, metric, job.metric_mode)
    for step in chosen:
        opened, folder = open_checkpoint(job, step), output_dir / f"checkpoint_{step}"
        results = evaluator.finished(opened, folder)
        if results is None:
            results = evaluator.evaluate(opened, folder, events=False)
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


def _decoding(job: Evaluate) -> DecodingConfig:
    return job.decoding or one_beam(job.data.task_feature_lengths["targets"])


def _steps(job: Evaluate) -> list[int] | None:
    """Returns the steps to evaluate, or None for a single checkpoint."""
    if job.checkpoint_steps is None or job.checkpoint is None:
        return None
    return select_steps(job.checkpoint_steps, list_steps(job.checkpoint), "checkpoint_steps")


def _output_dir(job: Evaluate) -> AnyPath:
    if job.output_dir is not None:
        return as_path(job.output_dir)
    if job.checkpoint_steps is None or job.checkpoint is None:
        return as_path(time.strftime("runs/evaluate-%Y%m%d-%H%M%S"))
    run = as_path(job.checkpoint)
    run = run.parent if run.name == CHECKPOINTS else run
    return run / "evaluation" / re.sub(r"[^\w.+-]+", "_", data_name(job.data))


def open_checkpoint(job: Evaluate, step: int | None = None) -> Opened:
    """Opens the job's checkpoint; raises UserError if none is set."""
    if job.checkpoint is None:
        raise UserError(
            "checkpoint is not set. Pass --set checkpoint=PATH, where PATH is a run directory, a "
            "checkpoint_STEP directory or a Hugging Face directory."
        )
    asked = job.data.vocabulary
    # A remote path is only a recipe's default, so a vocabulary stored in the run takes precedence.
    if isinstance(asked, SentencePieceVocabulary) and has_scheme(asked.path):
        return open_model(job.checkpoint, step=step, default_vocabulary=asked)
    return open_model(job.checkpoint, step=step, vocabulary=asked)


def _tasks(
    job: Evaluate, opened: Opened | None, *, download: bool = True
) -> Sequence[EvaluationTask]:
    """Returns the tasks to evaluate; if the data consists of files, `opened` must not be None."""
    data = job.data
    if opened is not None:
        data = dataclasses.replace(data, vocabulary=opened.vocabulary)
        if isinstance(data, RankFilesConfig) and data.inputs_add_eos is None:
            add_eos = opened.eos_is_known and opened.inputs_add_eos
            data = dataclasses.replace(data, inputs_add_eos=add_eos)
    return evaluation_tasks(data, download=download)


def _check_output(output_dir: AnyPath, several: bool) -> AnyPath:
    """Returns the output directory; raises UserError if results cannot be written to it.

    The directory may contain only files of an interrupted job or, if `several` is True, results
    of other steps.
    """
    writable(output_dir, "output_dir")
    names = {path.name for path in output_dir.iterdir()} if output_dir.exists() else set()
    if several:
        continues = any(name.startswith("checkpoint_") for name in names)
    else:
        continues = report.RESULTS not in names and not UNFINISHED.isdisjoint(names)
    if names - {LOCK_FILE, END_FILE, FOLDER} and not continues:
        raise UserError(
            f"output_dir: {output_dir} is not empty, and results are never overwritten. Choose "
            "another directory, or set output_dir=None for the default one."
        )
    return output_dir


def describe(job: Evaluate) -> Description:
    """Returns the settings of a job and the results of checks."""
    found = Description(
        {
            "data": data_name(job.data),
            "dtype": job.dtype,
            **run_devices(job.partitioner).rows(),
            "batch": f"{job.batch_size} examples of maximum length, or more shorter ones",
        }
    )
    chosen: list[int] | None = None
    if job.checkpoint_steps is not None:
        chosen = found.add("steps", lambda: _steps(job), lambda s: ", ".join(map(str, s or ())))
    found.add("output_dir", lambda: _check_output(_output_dir(job), several=chosen is not None))
    opened = found.add(
        "checkpoint",
        lambda: open_checkpoint(job, chosen[0] if chosen else None),
        loading.describe,
    )
    tasks: Sequence[EvaluationTask] = ()
    if opened is not None or isinstance(job.data, TaskMixtureConfig):
        here = found.add(
            "tasks",
            lambda: _tasks(job, opened, download=False),
            lambda s: f"{sum(task.load is not None for task in s)} of {len(s)} tasks have data",
        )
        tasks = here or ()
    if chosen is not None and tasks:
        metric = functools.partial(steps.monitored_metric, job.metric_name_to_monitor, tasks)
        found.add("best step by", metric, lambda name: f"{name} ({job.metric_mode})")
    if any(task.kind == "generate" for task in tasks):
        decoding = _decoding(job)
        beams = f", num_beams {decoding.num_beams}" if decoding.method == "beam" else ""
        found.rows["decoding"] = f"{decoding.method}{beams}, max_length {decoding.max_length}"
    return found
