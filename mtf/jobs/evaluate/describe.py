"""Describes a job for a dry run, and finds the problems that would make it fail."""

from __future__ import annotations

from collections.abc import Sequence

from mtf.data.settings import TaskMixtureConfig
from mtf.evaluation.settings import data_name
from mtf.evaluation.tasks import EvaluationTask
from mtf.inference import loading
from mtf.jobs.description import Checks, Description
from mtf.jobs.evaluate.run import (
    check_output,
    checkpoint_steps,
    decoding_of,
    monitored_metric,
    open_checkpoint,
    open_tasks,
    output_dir_of,
)
from mtf.jobs.evaluate.settings import Evaluate
from mtf.partitioning.devices import run_devices


def describe(job: Evaluate) -> Description:
    """Returns the settings of a job and the results of checks; see `Evaluate.describe`."""
    checks = Checks()
    chosen: list[int] | None = None
    if job.checkpoint_steps is not None:
        chosen = checks.add(
            "steps", lambda: checkpoint_steps(job), lambda s: ", ".join(map(str, s or ()))
        )
    checks.add("output_dir", lambda: check_output(output_dir_of(job), several=chosen is not None))
    opened = checks.add(
        "checkpoint",
        lambda: open_checkpoint(job, chosen[0] if chosen else None),
        loading.describe,
    )
    tasks: Sequence[EvaluationTask] = ()
    if opened is not None or isinstance(job.data, TaskMixtureConfig):
        found = checks.add(
            "tasks",
            lambda: open_tasks(job, opened, download=False),
            lambda s: f"{sum(task.load is not None for task in s)} of {len(s)} tasks have data",
        )
        tasks = found or ()
    if chosen is not None and tasks:
        checks.add("best step by", lambda: f"{monitored_metric(job, tasks)} ({job.metric_mode})")
    rows = {
        "data": data_name(job.data),
        "dtype": job.dtype,
        **run_devices(job.partitioner).rows(),
        "batch": f"{job.batch_size} examples of maximum length, or more shorter ones",
        **checks.rows,
    }
    if any(task.kind == "generate" for task in tasks):
        decoding = decoding_of(job)
        beams = f", num_beams {decoding.num_beams}" if decoding.method == "beam" else ""
        rows["decoding"] = f"{decoding.method}{beams}, max_length {decoding.max_length}"
    return Description(rows, tuple(checks.problems))
