"""Describes a training job for a dry run, and finds the problems that would make it fail."""

from __future__ import annotations

import functools

from mtf.base.downloads import writable
from mtf.base.errors import UserError
from mtf.data import loaders
from mtf.data.mixtures import open_mixture
from mtf.data.packing import to_batch
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.mixtures import list_mixtures
from mtf.evaluation import metrics
from mtf.jobs.description import Description
from mtf.jobs.train.settings import Train
from mtf.partitioning.devices import run_devices
from mtf.partitioning.mesh import PjitPartitioner
from mtf.storage import as_path
from mtf.training import sharding_table, sizes
from mtf.training.trackers import Tracker
from mtf.training.trainer import Trainer, check_start


def describe(job: Train) -> Description:
    """Returns the sizes and devices of a run, and the results of checks.

    Allocates no arrays. The devices need not be available.
    """
    lengths, batch_size = job.data.task_feature_lengths, job.batch_size
    devices = run_devices(job.partitioner, batch_size, job.trainer.num_microbatches)
    trainer = Trainer(job.model, job.optimizer, devices.partitioner, job.trainer, job.random_seed)
    trainer.check_functions(to_batch([], lengths, 1, job.data.pack))
    needed = sum(sizes.least_bytes(trainer, lengths, batch_size).values())
    found = Description({**sizes.state_rows(trainer, lengths, batch_size), **devices.rows(needed)})
    found.add("batch", devices.check_batch)
    found.rows |= sizes.step_rows(trainer, lengths, batch_size)
    found.rows["train steps"] = f"{job.train_steps:,} (including those of the initial checkpoint)"
    run_dir = None if job.model_dir is None else as_path(job.model_dir)
    if run_dir is not None:
        found.add("model_dir", functools.partial(writable, run_dir, "model_dir"))
    restore, last = job.checkpoint.restore, job.train_steps
    found.add("start", lambda: check_start(trainer, run_dir, restore, last))
    found.add("vocabulary", functools.partial(check_vocabulary, job))
    if isinstance(job.data, TaskMixtureConfig):
        found.add("mixture", functools.partial(_check_mixture, job.data))
    found.add("data", lambda: loaders.check(job.data, batch_size=job.batch_size))
    if job.trackers:
        found.add(
            "trackers",
            lambda: checked_trackers(job),
            lambda used: ", ".join(type(tracker).__name__ for tracker in used),
        )
    if job.evaluator is not None and (names := job.evaluator.metrics) is not None:
        found.add("metrics", lambda: [*map(metrics.require, names)], lambda _: ", ".join(names))
    return found


def describe_sharding(job: Train, num_devices: int | None) -> str:
    """Returns a table of the shardings of all parameters; see `Train.describe_sharding`."""
    if num_devices is None:
        partitioner = run_devices(
            job.partitioner, job.batch_size, job.trainer.num_microbatches
        ).partitioner
    else:
        partitioner = PjitPartitioner.create_abstract(job.partitioner, num_devices)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    return sharding_table.text(trainer)


def checked_trackers(job: Train) -> tuple[Tracker, ...]:
    """Returns the trackers; raises UserError if any of them cannot be used."""
    trackers = (job.trackers,) if isinstance(job.trackers, Tracker) else job.trackers
    for tracker in trackers:
        tracker.check()
    return trackers


def check_vocabulary(job: Train) -> str:
    """Describes the size of the vocabulary; raises UserError if the embedding is too small."""
    rows, ids = job.model.network.vocab_size, job.data.vocabulary.vocab_size
    if rows < ids:
        raise UserError(
            f"model.network.vocab_size is {rows}, but data.vocabulary has {ids} ids, "
            f"including sentinels; expected at least {ids}, or {-(-ids // 128) * 128} if rounded "
            "up to a multiple of 128."
        )
    return f"{job.data.vocabulary.path}: {ids:,} ids, embedding of {rows:,} rows"


def _check_mixture(data: TaskMixtureConfig) -> str:
    """Returns the name of the mixture or task; raises UserError if it does not exist."""
    name = data.mixture_or_task_name
    folders = [as_path(folder) for folder in data.cache_dirs]
    in_cache = any(
        (folder / "mixtures" / f"{name}.json").is_file() or (folder / name / "info.json").is_file()
        for folder in folders
    )
    # A mixture that is registered or in the cache does not need templates.
    if data.task is not None or not (in_cache or name in list_mixtures()):
        open_mixture(data)
    return name
