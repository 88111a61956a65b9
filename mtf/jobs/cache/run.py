"""Writes and checks token caches (`python -m mtf.cache`)."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.base import signals
from mtf.base.downloads import as_user_errors
from mtf.base.errors import RunError, UserError
from mtf.base.processes.process_info import find_processes
from mtf.base.progress import rate_bar
from mtf.base.writing import LOCK_FILE, free_space, locked, write_failure
from mtf.cli.command import exit_status
from mtf.data.cache import build
from mtf.data.cache.build import NOT_CHOSEN, CacheBuild
from mtf.data.cache.format import ArrayRecordFormat, TaskInfo, read_json
from mtf.data.cache.reader import TokenCache, check_files, is_description
from mtf.data.cache.recording import CacheProgress, is_record, recorded
from mtf.data.cache.settings import CacheConfig
from mtf.data.seqio import from_seqio
from mtf.data.seqio.cache_format import SeqioFormat
from mtf.jobs.cache.mixture import chosen_mixture
from mtf.storage import AnyPath, as_path, check_bucket, file_sizes, is_remote
from mtf.storage.copies import cache_directory, copy_of, local_copy

if TYPE_CHECKING:
    from mtf.base.processes.rendezvous import Rendezvous
    from mtf.storage.remote import RemotePath

_NUM_REASONS_SHOWN = 3


def run(options: argparse.Namespace) -> int:
    """Runs `python -m mtf.cache` and returns its exit status."""
    if options.check:
        return _check(options)
    output = as_path(options.output)
    processes = find_processes(os.environ, options)
    if processes is None:
        return _write_locked(options, output, None)
    from mtf.base.processes.rendezvous import Rendezvous  # Imports JAX.

    rendezvous = Rendezvous(processes)
    status_of = functools.partial(exit_status, only_shows=False)
    rendezvous.run(lambda: _write_locked(options, output, rendezvous), status_of)
    return 0


def _write_locked(
    options: argparse.Namespace, output: AnyPath, rendezvous: Rendezvous | None
) -> int:
    index = rendezvous.index if rendezvous else 0
    cache_dir = _staging(output, index) if is_remote(output) else output
    is_locked = index == 0 or is_remote(output)
    try:
        with locked(cache_dir, "--output", shown=output) if is_locked else contextlib.nullcontext():
            if is_remote(output):
                _copy_descriptions(output, cache_dir)
            return _write(options, cache_dir, output, rendezvous)
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


def _write(
    options: argparse.Namespace,
    cache_dir: Path,
    output: AnyPath,
    rendezvous: Rendezvous | None,
) -> int:
    mixture, vocabulary = chosen_mixture(options)
    settings = CacheConfig(
        cache_dir=cache_dir,
        store=output if is_remote(output) else None,
        vocabulary=vocabulary,
        format=SeqioFormat() if options.format == "seqio" else ArrayRecordFormat(),
        splits=tuple(options.split) if options.split else None,
        seed=options.seed,
        num_shards=options.num_shards,
        data_dir=options.data_dir,
        only=tuple(options.only) if options.only else None,
        skip_missing=options.skip_missing,
        max_rows=options.max_rows,
    )
    if options.from_seqio is not None:
        work = from_seqio.prepare(mixture, settings, options.from_seqio)
    else:
        work = build.prepare(mixture, settings)
    index, count = (0, 1) if rendezvous is None else (rendezvous.index, rendezvous.count)
    if index == 0:
        _print_left_out(work)
    num_workers = options.num_workers or len(os.sched_getaffinity(0))
    if rendezvous is not None:
        build.compare(work, rendezvous)
    start = time.perf_counter()
    with signals.Interrupts() as interrupts, rate_bar(work.num_rows, "examples") as show:
        interrupts.hold()
        with recorded(settings.where, index, count, options.hang_seconds or None) as note:

            def report(done: CacheProgress) -> None:
                interrupts.raise_if_requested()
                rows = f"{done.num_rows:,} records"
                if index == 0:
                    tasks = f"{done.num_tasks}/{len(work.works)} tasks"
                    show(done.num_rows, done.num_examples, tasks)
                    rows = f"{tasks}, {done.num_rows:,} of {work.num_rows:,} records"
                note(done, rows)

            build.run(work, num_workers, report, rendezvous)
    if not index:
        _print_summary(work, time.perf_counter() - start)
    return 0


def _print_left_out(work: CacheBuild) -> None:
    reasons = Counter(reason for reason in work.absent.values() if reason != NOT_CHOSEN)
    for reason, num_tasks in reasons.most_common(_NUM_REASONS_SHOWN):
        print(f"left out ({num_tasks} tasks): {reason}", file=sys.stderr)


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


def _check(options: argparse.Namespace) -> int:
    cache_dir = as_path(options.output)
    cache = TokenCache(cache_dir, options.mixture)
    names = list(cache.mixture(options.mixture).tasks)
    num_damaged = 0
    for name, problems in check_files(cache_dir, names):
        num_damaged += bool(problems)
        print("".join(f"{problem}\n" for problem in problems), end="")
        if problems and cache.has(name):
            print(f"  Delete {cache_dir / name} and cache {options.mixture} again.")
    if unfinished := cache.unfinished():
        print(f"incomplete tasks: {', '.join(unfinished)}")
    print(f"{len(names)} tasks read, {num_damaged} damaged")
    return 1 if num_damaged else 0
