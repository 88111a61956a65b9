"""Describes a training run, and checks what it needs at its start (`Train.describe`)."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mtf import loaders
from mtf.data.packing import to_batch
from mtf.data.settings import TaskMixtureConfig, TextFilesConfig
from mtf.errors import UserError
from mtf.jobs.description import Checks, Description
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.planning import plan_devices
from mtf.sources.text_files import find_files
from mtf.storage import AnyPath, as_path
from mtf.tasks.mixtures import list_mixtures
from mtf.training import plan, sharding_table
from mtf.training.trainer import Trainer, check_start

if TYPE_CHECKING:
    from mtf.jobs.train import Train


def describe(job: Train) -> Description:
    """Returns the sizes of a run, its devices, and checks of all it reads; allocates nothing."""
    lengths, batch_size = job.data.task_feature_lengths, job.batch_size
    devices = plan_devices(job.partitioner, batch_size, job.trainer.num_microbatches)
    trainer = Trainer(job.model, job.optimizer, devices.partitioner, job.trainer, job.random_seed)
    trainer.check_functions(to_batch([], lengths, 1, job.data.pack))
    needed = sum(plan.least_bytes(trainer, lengths, batch_size).values())
    checks = Checks()
    checks.add("batch", devices.check_batch)
    above = {**plan.sizes(trainer, lengths, batch_size), **devices.rows(needed), **checks.rows}
    run_dir = None if job.model_dir is None else as_path(job.model_dir)
    if run_dir is not None:
        checks.add("model_dir", functools.partial(_check_run_dir, run_dir))
    checks.add("start", lambda: _check_start(job, trainer, run_dir))
    checks.add("vocabulary", job.check_vocabulary)
    if isinstance(job.data, TaskMixtureConfig):
        checks.add("mixture", functools.partial(_check_mixture, job.data))
    checks.add("data", lambda: _check_data(job))
    if job.trackers:
        checks.add("trackers", job.check_trackers)
    if job.evaluator is not None and job.evaluator.metrics is not None:
        checks.add("metrics", functools.partial(_check_metrics, job.evaluator.metrics))
    work = plan.work(trainer, lengths, batch_size)
    steps = {"train steps": f"{job.train_steps:,} (including those of the initial checkpoint)"}
    return Description({**above, **work, **steps, **checks.rows}, tuple(checks.problems))


def describe_sharding(job: Train, num_devices: int | None) -> str:
    """Returns how the parameters are split over devices, by default those of `describe`."""
    if num_devices is None:
        partitioner = plan_devices(
            job.partitioner, job.batch_size, job.trainer.num_microbatches
        ).partitioner
    else:
        partitioner = PjitPartitioner.create_abstract(job.partitioner, num_devices)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    return sharding_table.text(trainer)


def _check_start(job: Train, trainer: Trainer, run_dir: AnyPath | None) -> str:
    return check_start(trainer, run_dir, job.checkpoint.restore, job.train_steps)


def _check_data(job: Train) -> str:
    data = job.data
    if isinstance(data, TextFilesConfig):
        find_files(data.patterns)
    return loaders.check(data, batch_size=job.batch_size)


def _check_run_dir(run_dir: AnyPath) -> str:
    if isinstance(run_dir, Path):
        there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise UserError(
                f"model_dir: {run_dir} cannot be written: {there} is not a writable directory."
            )
    elif not run_dir.has_bucket():
        raise UserError(f"model_dir: {run_dir}: there is no bucket {run_dir.bucket!r}.")
    return str(run_dir)


def _check_mixture(data: TaskMixtureConfig) -> str:
    """Raises UserError, with the nearest names, if there is no such mixture or task."""
    name = data.mixture_or_task_name
    folders = [as_path(folder) for folder in data.cache_dirs]
    in_cache = any(
        (folder / "mixtures" / f"{name}.json").is_file() or (folder / name / "info.json").is_file()
        for folder in folders
    )
    # Neither needs templates.
    if data.task is not None or not (in_cache or name in list_mixtures()):
        loaders.open_mixture(data)
    return name


def _check_metrics(names: tuple[str, ...]) -> str:
    from mtf.evaluation import metrics

    for name in names:
        metrics.require(name)
    return ", ".join(names)
