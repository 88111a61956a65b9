"""Runs and describes a job that writes a token cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.base import signals
from mtf.base.downloads import as_user_errors, writable
from mtf.base.errors import NotCheckedError, RunError, UserError
from mtf.base.processes.rendezvous import Rendezvous, current
from mtf.base.progress import rate_bar, waiting
from mtf.base.writing import LOCK_FILE, free_space, locked, write_failure
from mtf.config.run_dir import write_job
from mtf.data.cache import build
from mtf.data.cache.build import NOT_CHOSEN, CacheBuild
from mtf.data.cache.format import ArrayRecordFormat, TaskInfo, read_json
from mtf.data.cache.reader import is_description
from mtf.data.cache.recording import CacheProgress, is_record, recorded
from mtf.data.cache.settings import CacheConfig
from mtf.data.mixtures import dataset_mixture, find_mixture
from mtf.data.seqio import from_seqio
from mtf.data.seqio.cache_format import SeqioFormat
from mtf.data.settings import default_cache_dir
from mtf.data.tasks import registry
from mtf.data.tasks.mixtures import Mixture
from mtf.data.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    Vocabulary,
    open_vocabulary,
)
from mtf.evaluation.metrics import find as find_metric
from mtf.jobs.cache.settings import Cache
from mtf.jobs.description import Description
from mtf.storage import (
    AnyPath,
    as_path,
    check_bucket,
    file_sizes,
    has_scheme,
    is_remote,
)
from mtf.storage.copies import cache_directory, copy_of, local_copy

if TYPE_CHECKING:
    from mtf.storage.remote import RemotePath

_NUM_T5_SENTINELS = 100
_NUM_REASONS_SHOWN = 3


def run(job: Cache) -> AnyPath:
    """Runs a job whose field types have been checked."""
    signals.hint("run the same command again to continue")
    output, rendezvous = as_path(output_of(job)), current()
    index = rendezvous.index if rendezvous else 0
    cache_dir = _staging(output, index) if is_remote(output) else output
    is_locked = index == 0 or is_remote(output)
    try:
        with locked(cache_dir, "--output", shown=output) if is_locked else contextlib.nullcontext():
            if is_remote(output):
                _copy_descriptions(output, cache_dir)
            return _write(job, cache_dir, rendezvous)
    except UserError:
        raise  # The message is already complete, even if a failed write is the cause.
    except Exception as error:
        reason = write_failure(error, output) or write_failure(error, cache_dir)
        if reason is None:
            raise
        raise RunError(
            f"--output {output} cannot be written to: {reason}{free_space(cache_dir)}. "
            "Finished parts are kept. Fix the problem, then run the same command again to continue."
        ) from None


def _staging(output: RemotePath, index: int) -> Path:
    """Returns the local directory in which this process prepares files for a remote cache."""
    folder = cache_directory() / "writing" / copy_of(output).relative_to(cache_directory())
    return folder.with_name(f"{folder.name}.{index}") if index else folder


def _copy_descriptions(output: RemotePath, cache_dir: Path) -> None:
    """Copies a remote cache's JSON files to `cache_dir`, or empties `cache_dir` if none exist."""
    with as_user_errors("--output"):
        check_bucket(output)
        names = {name for name in file_sizes(output) if not is_record(name)}
        if names and "cache.json" not in names:
            raise UserError(f"--output {output} is neither empty nor a cache; use another path")
        if names:
            local_copy(output, only=is_description, to=cache_dir)
        else:
            for each in cache_dir.iterdir():
                if each.name != LOCK_FILE:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()


def chosen_vocabulary(job: Cache, original: str) -> Vocabulary:
    """Returns the vocabulary that is set, or else the released vocabulary `original`."""
    path = job.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(
            f"--vocabulary is missing; the vocabulary {original} is not public, so pass the path "
            "of its model file"
        )
    default = 0 if path == ByteVocabulary.path else _NUM_T5_SENTINELS
    return open_vocabulary(path, default if job.extra_ids is None else job.extra_ids)


def _chosen_mixture(job: Cache) -> tuple[Mixture, Vocabulary]:
    """Returns the mixture, or the task that the job defines, and its vocabulary."""
    if job.task is not None:
        for metric in job.task.metrics:
            find_metric(metric)
        chosen = dataset_mixture(job.mixture, job.task, *(job.split or ()))
    else:
        if job.module is not None:
            registry.import_module(job.module, "--module")
        # SeqIO tasks are opened for one vocabulary, by default T5's. Other tasks do not depend on
        # it.
        vocabulary = chosen_vocabulary(job, "t5")
        chosen = find_mixture(job.mixture, vocabulary, job.module, job.templates)
    return chosen, chosen_vocabulary(job, chosen.vocabulary)


def output_of(job: Cache) -> str:
    """Returns the directory of the cache, by default the one from which recipes read it."""
    if job.output is not None:
        return job.output
    _, vocabulary = _chosen_mixture(job)
    others = {f"seed{job.seed}": job.seed, f"{job.max_rows}rows": job.max_rows}
    others["seqio"] = job.format == "seqio"
    return default_cache_dir(job.mixture, vocabulary, *(name for name in others if others[name]))


def prepare(job: Cache, cache_dir: Path, *, download: bool = True) -> CacheBuild:
    """Returns what is to be written; raises UserError or NotCheckedError if it cannot be known."""
    output = as_path(job.output or cache_dir)
    mixture, vocabulary = _chosen_mixture(job)
    settings = CacheConfig(
        cache_dir=cache_dir,
        store=output if is_remote(output) else None,
        vocabulary=vocabulary,
        format=SeqioFormat() if job.format == "seqio" else ArrayRecordFormat(),
        splits=job.split,
        seed=job.seed,
        num_shards=job.num_shards,
        data_dir=job.data_dir,
        only=job.only,
        skip_missing=job.skip_missing,
        max_rows=job.max_rows,
    )
    if job.from_seqio is None:
        return build.prepare(mixture, settings, download=download)
    if not download and has_scheme(job.from_seqio):
        raise NotCheckedError(f"{job.from_seqio} is not on this machine")
    return from_seqio.prepare(mixture, settings, job.from_seqio)


def _write(job: Cache, cache_dir: Path, rendezvous: Rendezvous | None) -> AnyPath:
    with waiting("opening the datasets", shown=rendezvous is None or rendezvous.index == 0):
        work = prepare(job, cache_dir)
    settings = work.settings
    index, count = (0, 1) if rendezvous is None else (rendezvous.index, rendezvous.count)
    if index == 0:
        reasons = Counter(reason for reason in work.absent.values() if reason != NOT_CHOSEN)
        for reason, num_tasks in reasons.most_common(_NUM_REASONS_SHOWN):
            print(f"left out ({num_tasks} tasks): {reason}", file=sys.stderr)
    if rendezvous is not None:
        build.compare(work, rendezvous)
    if index == 0:
        write_job(settings.where, job)
    start = time.perf_counter()
    with signals.Interrupts() as interrupts, rate_bar(work.num_rows, "examples") as show:
        interrupts.hold()
        with recorded(settings.where, index, count, job.hang_seconds) as note:

            def report(done: CacheProgress) -> None:
                interrupts.raise_if_requested()
                rows = f"{done.num_rows:,} records"
                if index == 0:
                    tasks = f"{done.num_tasks}/{len(work.works)} tasks"
                    show(done.num_rows, done.num_examples, tasks)
                    rows = f"{tasks}, {done.num_rows:,} of {work.num_rows:,} records"
                note(done, rows)

            num_workers = job.num_workers or len(os.sched_getaffinity(0))
            build.run(work, num_workers, report, rendezvous)
    if not index:
        _print_summary(work, time.perf_counter() - start)
    return settings.where


def _print_summary(work: CacheBuild, seconds: float) -> None:
    if not work.works:
        print(f"{work.settings.where}: all {len(work.finished)} tasks are already complete")
        return
    cache_dir = work.settings.cache_dir
    infos = [read_json(cache_dir / name / "info.json", TaskInfo) for name in work.works]
    splits = [split for info in infos for split in info.splits.values()]
    num_examples = sum(split.num_examples for split in splits)
    num_tokens = sum(sum(split.num_tokens.values()) for split in splits)
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    print(
        f"{work.settings.where}: {len(infos)} tasks written in {seconds:.0f} s, "
        f"{len(work.finished)} were already complete, {len(work.absent)} left out\n"
        f"{num_examples:,} examples from {sum(split.num_rows for split in splits):,} records "
        f"({sum(split.num_dropped for split in splits):,} records dropped by templates), "
        f"{num_tokens:,} tokens, {num_bytes / 1e6:,.1f} MB"
    )


def describe(job: Cache) -> Description:
    """Returns what would be read and written, and the results of checks."""
    found = Description()
    output = found.add("output", lambda: as_path(output_of(job)))
    if output is None:
        return found
    found.add("output", lambda: writable(output, "--output"), lambda path: f"{path}, {job.format}")
    cache_dir = _staging(output, 0) if is_remote(output) else output
    found.add(job.mixture, lambda: prepare(job, cache_dir, download=False), _summary)
    return found


def _summary(work: CacheBuild) -> str:
    return (
        f"{len(work.works)} tasks to write, {len(work.finished)} complete, {len(work.absent)} left "
        f"out; {work.num_rows:,} records to read; vocabulary {work.settings.vocabulary.path}"
    )
