"""Describes a job for a dry run, and finds the problems that would make it fail."""

from __future__ import annotations

import functools

from mtf.data.tasks.mixtures import split_available
from mtf.inference import loading
from mtf.inference.opening import Opened
from mtf.jobs.description import Checks, Description
from mtf.jobs.infer.run import find_tasks, open_checkpoint, open_sources, output_dir_of
from mtf.jobs.infer.settings import Infer
from mtf.partitioning.devices import run_devices


def _check_tasks(job: Infer, opened: Opened | None) -> str:
    """Returns a message that says how many tasks have data.

    Raises UserError if the job would fail.
    """
    job.check_input()
    mixture = find_tasks(job, None if opened is None else opened.vocabulary)
    present, absent = split_available(mixture, job.split, job.data_dir, download=False)
    skipped = f"; {len(absent)} are skipped: {absent[0][1]}" if absent else ""
    return f"{len(present)} of {len(present) + len(absent)} tasks have data{skipped}"


def describe(job: Infer) -> Description:
    """Returns the settings of a job and the results of checks; see `Infer.describe`."""
    checks, lengths = Checks(), job.task_feature_lengths
    opened = checks.add("checkpoint", functools.partial(open_checkpoint, job), loading.describe)
    if job.files is None:
        name = job.mixture_or_task_name or "input"
        checks.add(name, lambda: _check_tasks(job, opened))
    else:
        sources = checks.add("files", lambda: open_sources(job, opened), lambda s: f"{len(s)}")
        for each in sources or ():
            checks.rows[each.name] = f"{each.summary.num_examples:,} examples"
    rows = {
        "mode": job.mode if job.mode == "score" else f"{job.mode}, {job.decoding.method}",
        "lengths": f"inputs {lengths['inputs']}, targets {lengths['targets']}",
        "dtype": job.dtype,
        **run_devices(job.partitioner).rows(),
        "batch": f"{job.batch_size} examples, shard {job.shard_id} of {job.num_shards}",
    }
    if opened is not None:
        rows["output_dir"] = str(output_dir_of(job, opened.checkpoint.path))
    return Description({**rows, **checks.rows}, tuple(checks.problems))
