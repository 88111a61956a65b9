"""Writes a token cache with several processes.

Shard files and task folders get their final names only when they are complete. Therefore, a second
call with the same settings continues where the first ended, even if the first was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from mtf.base import signals
from mtf.base.environment import package_versions
from mtf.base.errors import UserError, did_you_mean
from mtf.base.processes.rendezvous import Rendezvous
from mtf.base.writing import upload, write_atomically
from mtf.data.cache.format import (
    CacheInfo,
    MixtureInfo,
    SplitInfo,
    TaskInfo,
    feature_dtypes,
    mixture_path,
    read_json,
    write_json,
)
from mtf.data.cache.recording import CacheProgress, is_record
from mtf.data.cache.settings import CacheConfig
from mtf.data.cache.writer import (
    ReadShard,
    ShardWork,
    start_worker,
    write_shard,
    write_shard_in_worker,
)
from mtf.data.sources.datasets import (
    MissingDatasetError,
    Source,
    check_downloaded,
    mirror_has,
    open_all,
)
from mtf.data.sources.files import Rows
from mtf.data.tasks.missing import check_missing
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.task import Task

NOT_CHOSEN = "not chosen by --only"
_POLL_SECONDS = 0.5
Report = Callable[[CacheProgress], None]


@dataclass
class CacheBuild:
    """A plan for writing the tasks of a mixture to a cache.

    Attributes:
      mixture: mixture to be cached.
      settings: settings of the cache.
      works: dict mapping the name of each task to be written to its shards.
      finished: names of the tasks that are already complete.
      absent: dict mapping the name of each omitted task to the reason.
    """

    mixture: Mixture
    settings: CacheConfig
    works: dict[str, list[ShardWork]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """The number of records in all shards to be written."""
        return sum(work.num_rows for works in self.works.values() for work in works)

    def add(
        self,
        task: Task,
        info: TaskInfo,
        split: str,
        shards: Sequence[tuple[int, int, ReadShard | None]],
        rows: Rows | None = None,
    ) -> None:
        """Adds a split of a task; `shards` contains (start, stop, read) for each `ShardWork`."""
        self.works.setdefault(task.name, []).extend(
            ShardWork(task, info, self.settings, split, shard, len(shards), *bounds, rows=rows)
            for shard, bounds in enumerate(shards)
        )

    def leave_out(self, missing: Mapping[str, str], optional: Container[str] = ()) -> None:
        """Omits the tasks in `missing`, which maps their names to reasons.

        Raises UserError if a task is not `optional` and `settings.skip_missing` is False, or if no
        task is left.
        """
        name, num_chosen = self.mixture.name, len(self.mixture.tasks) - len(self.absent)
        self.absent |= missing
        if len(missing) < num_chosen:
            missing = {task: why for task, why in missing.items() if task not in optional}
        skips = self.settings.skip_missing
        check_missing(name, num_chosen, missing, skips, option="add --skip-missing")


def begin(
    mixture: Mixture, settings: CacheConfig, describe: Callable[[Task, CacheConfig], TaskInfo]
) -> tuple[CacheBuild, list[tuple[Task, TaskInfo]]]:
    """Returns a build without shards, and a (task, description) pair for each task to be written.

    `describe` returns the description of a task. Raises UserError if the cache was made with
    other settings or task definitions, or if a pattern of `settings.only` matches no task.
    """
    _check_cache_info(settings)
    build, todo = CacheBuild(mixture, settings), []
    names = [task.name for task, _ in mixture.tasks]
    chosen = set(names if settings.only is None else ())
    for pattern in settings.only or ():
        found = fnmatch.filter(names, pattern)
        if not found:
            raise UserError(f"--only {pattern} matches no task.{did_you_mean(pattern, names)}")
        chosen.update(found)
    for task, _ in mixture.tasks:
        if task.name not in chosen:
            build.absent[task.name] = NOT_CHOSEN
        elif _is_finished(settings, info := describe(task, settings)):
            build.finished.append(task.name)
        else:
            todo.append((task, info))
    return build, todo


def prepare(mixture: Mixture, settings: CacheConfig, *, download: bool = True) -> CacheBuild:
    """Finds and counts the records to be rendered and tokenized, without writing to the cache.

    Raises UserError if required datasets are missing, or if a custom task fails on the first record
    of a split. Also raises the same errors as `begin`, and NotCheckedError if `download` is False
    and a dataset would have to be downloaded.
    """
    build, todo = begin(mixture, settings, task_info)
    # If the mirror contains a dataset but lacks an optional split, that split is not downloaded.
    sources = [
        source
        for task, _ in todo
        for source, required in _sources(task, settings).values()
        if required or mirror_has(source, settings.data_dir) is not False
    ]
    opened = open_all(sources, data_dir=settings.data_dir, download=download)
    if not download:
        check_downloaded(mixture.name, list(opened.values()))
    missing: dict[str, str] = {}
    optional = set()
    for task, info in todo:
        wanted = _sources(task, settings)
        found = [opened[source] for source, required in wanted.values() if required]
        problem = next((f for f in found if isinstance(f, MissingDatasetError)), None)
        if problem is not None:
            missing[task.name] = str(problem)
            if problem.skippable_in_evaluation and task.kind == "rank":
                optional.add(task.name)
            continue
        for split, (source, _) in wanted.items():
            rows = opened.get(source)
            if isinstance(rows, Rows):
                if task.is_custom:
                    for row in rows.rows(0, 1):
                        task.row_examples(row, 0, split, settings.seed)
                num_rows = min(len(rows), settings.max_rows or len(rows))
                num_shards = settings.num_shards_of(num_rows)
                edges = [num_rows * shard // num_shards for shard in range(num_shards + 1)]
                shards = [(*bounds, None) for bounds in itertools.pairwise(edges)]
                build.add(task, info, split, shards, rows.kept())
    build.leave_out(missing, optional)
    return build


def run(
    build: CacheBuild, num_workers: int, report: Report, rendezvous: Rendezvous | None = None
) -> None:
    """Writes a cache with `num_workers` processes; if there is only one, it is this process.

    Calls `report` repeatedly with the progress. If several hosts write the cache, `rendezvous`
    connects them. In this case, the first host creates the folders, divides the shards among the
    hosts, and completes each task when all its shards are written. Raises UserError if a task fails
    on a record, if a file cannot be written, or if a worker process is killed.
    """
    if rendezvous is not None and rendezvous.index:
        _run_share(build, num_workers, report, rendezvous)
        return
    settings, mixture = build.settings, build.mixture
    cache_dir = settings.cache_dir
    settings.write(cache_dir / "cache.json", cache_info(settings))
    for works in build.works.values():
        _prepare_folder(works)
    todo = [w for works in build.works.values() for w in works if not w.done_path.exists()]
    num_left = Counter(work.task.name for work in todo)
    num_rows_before = build.num_rows - sum(work.num_rows for work in todo)
    finished = [name for name in build.works if not num_left[name]]
    for name in finished:
        _finish_task(build.works[name])
    mine, others = todo, list[ShardWork]()
    if rendezvous is not None:
        rendezvous.broadcast("shards", [_name(work) for work in todo])
        mine = todo[:: rendezvous.count]
        others = [work for i, work in enumerate(todo) if i % rendezvous.count]
    with contextlib.closing(_write(mine, others, num_workers)) as steps:
        for task, done in steps:
            if task is not None:
                num_left[task] -= 1
                if not num_left[task]:
                    _finish_task(build.works[task])
                    finished.append(task)
            num_rows = num_rows_before + done.num_rows
            report(done._replace(num_tasks=len(finished), num_rows=num_rows))
    there = {path.parent.name for path in cache_dir.glob("*/info.json")}
    absent = {name: reason for name, reason in build.absent.items() if name not in there}
    rates = {task.name: rate for task, rate in mixture.tasks}
    tasks = {name: rate for name, rate in rates.items() if name not in absent}
    about = (mixture.name, mixture.vocabulary, mixture.fingerprint)
    info = MixtureInfo(*about, tasks, absent, rates if absent else {})
    settings.write(mixture_path(cache_dir, mixture.name), info)


def _run_share(build: CacheBuild, num_workers: int, report: Report, rendezvous: Rendezvous) -> None:
    """Writes the shards that the first host assigns to this host."""
    waits = CacheProgress(0, 0, 0, waits=True)
    names = rendezvous.broadcast("shards", meanwhile=lambda: report(waits))
    works = _by_name(build)
    mine = [works[name] for name in names[rendezvous.index :: rendezvous.count]]
    for work in mine:  # If the cache is in a store, each host has its own folders.
        work.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(_write(mine, [], num_workers)) as steps:
        for _, done in steps:
            report(done)


def compare(build: CacheBuild, rendezvous: Rendezvous) -> None:
    """Raises UserError on every host if the hosts are about to write different data."""
    info = dataclasses.asdict(cache_info(build.settings))
    del info["vocabulary_path"]
    facts: dict[str, Any] = {
        "the cache": [f"{name} {value}" for name, value in info.items()],
        "the shards to write": [
            f"{name}: records {work.start} to {work.stop} ({work.task.fingerprint})"
            for name, work in _by_name(build).items()
        ],
        "the packages": [f"{name} {version}" for name, version in package_versions().items()],
    }
    rendezvous.compare(facts)


def _name(work: ShardWork) -> str:
    return f"{work.task.name}/{work.path.name}"


def _by_name(build: CacheBuild) -> dict[str, ShardWork]:
    return {_name(work): work for works in build.works.values() for work in works}


def cache_info(settings: CacheConfig) -> CacheInfo:
    """Returns the description of a cache with these settings."""
    vocabulary = settings.vocabulary
    return CacheInfo(
        format=settings.format.name,
        vocabulary=vocabulary.fingerprint(),
        vocabulary_path=vocabulary.path,
        vocab_size=vocabulary.vocab_size,
        seed=settings.seed,
    )


def _check_cache_info(settings: CacheConfig) -> None:
    cache_dir, where, info = settings.cache_dir, settings.where, cache_info(settings)
    path = cache_dir / "cache.json"
    if not path.exists():
        if cache_dir.is_dir() and not all(is_record(file.name) for file in cache_dir.iterdir()):
            raise UserError(f"--output {where} is neither empty nor a cache; use another path")
        return
    found = read_json(path, CacheInfo)
    if found.vocabulary != info.vocabulary:
        raise UserError(
            f"the cache {where} was made with the vocabulary {found.vocabulary} "
            f"({found.vocabulary_path}), not with {info.vocabulary} ({info.vocabulary_path}); "
            "use another --output, or set --vocabulary and --extra-ids to match the cache"
        )
    for name in ("seed", "format"):
        then, now = getattr(found, name), getattr(info, name)
        if then != now:
            raise UserError(
                f"the cache {where} was made with --{name} {then}, not {now}; "
                f"use another --output, or set --{name} {then}"
            )


def task_info(task: Task, settings: CacheConfig) -> TaskInfo:
    """Returns the description of a task, without splits."""
    return TaskInfo(
        name=task.name,
        kind=task.kind,
        fingerprint=task.fingerprint,
        features=feature_dtypes(task.kind, settings.vocabulary.vocab_size),
        inputs_add_eos=task.inputs_add_eos,
        targets_add_eos=task.targets_add_eos,
        metrics=list(task.metrics),
        objective=None if task.objective is None else task.objective.as_json(),
        source=task.dataset + (f"/{task.subset}" if task.subset else ""),
        max_rows=settings.max_rows,
    )


def _is_finished(settings: CacheConfig, info: TaskInfo) -> bool:
    """Returns whether a task is complete; raises UserError if it was made with other settings."""
    folder = settings.cache_dir / info.name
    if not (folder / "info.json").exists():
        return False  # An incomplete task is continued, or deleted if its definition has changed.
    found = read_json(folder / "info.json", TaskInfo)
    lacking = [split for split in settings.splits or () if split not in found.splits]
    if found.fingerprint != info.fingerprint:
        problem = (
            "was made with a different task definition or templates: its fingerprint is "
            f"{found.fingerprint}, not {info.fingerprint}"
        )
    elif found.max_rows != info.max_rows:
        then, now = (
            "without --max-rows" if n is None else f"with --max-rows {n}"
            for n in (found.max_rows, info.max_rows)
        )
        problem = f"was made {then}, not {now}"
    elif lacking:
        problem = f"has the splits {', '.join(found.splits)}, but not {', '.join(lacking)}"
    else:
        return True
    raise UserError(
        f"{settings.where / folder.name} {problem}; use another --output, or "
        "delete this folder to write it again"
    )


def _sources(task: Task, settings: CacheConfig) -> dict[str, tuple[Source, bool]]:
    """Returns, for each split to be written, its source and whether the split must exist."""
    if settings.splits is not None:
        required = dict.fromkeys(settings.splits, True)
    elif task.kind == "rank":
        required = {"validation": True}
    else:
        is_listed = task.records is not None  # All splits that a source lists must exist.
        found = [split for split in ("train", "validation") if split in task.splits]
        required = {
            split: split == "train" or is_listed for split in found or task.splits or ("train",)
        }
    return {split: (task.source_of(split), must_exist) for split, must_exist in required.items()}


def _prepare_folder(works: Sequence[ShardWork]) -> None:
    """Creates a task's folder, and deletes any files in it that were made with other settings."""
    folder, info = works[0].folder, works[0].info
    path = folder / "info.json"
    if folder.exists() and not (path.exists() and read_json(path, TaskInfo) == info):
        shutil.rmtree(folder)
        if store := works[0].settings.store:
            (store / folder.name).rmtree()
            (store / info.name).rmtree()
    works[0].settings.write(path, info)
    wanted = {path, *(work.path for work in works), *(work.done_path for work in works)}
    for file in folder.iterdir():
        if file not in wanted:
            file.unlink()


def _finish_task(works: Sequence[ShardWork]) -> None:
    """Merges the descriptions of a task's shards, and renames its folder."""
    folder, settings = works[0].folder, works[0].settings
    splits: dict[str, SplitInfo] = {}
    for work in works:
        splits.setdefault(work.split, SplitInfo()).add(read_json(work.done_path, SplitInfo))
    info = dataclasses.replace(works[0].info, splits=splits)
    write_json(folder / "info.json", info)
    settings.format.finish(folder, info)
    for work in works:
        work.done_path.unlink()
    if settings.store is not None:
        upload(folder, settings.store / info.name)
        (settings.store / folder.name).rmtree()
        shutil.rmtree(settings.cache_dir / info.name, ignore_errors=True)
    os.replace(folder, settings.cache_dir / info.name)


# Yields (task, progress), and returns the final progress. `task` is the name of the task whose
# shard has just been completed, or None. The number of tasks in `progress` is always 0.
_Steps = Generator[tuple[str | None, CacheProgress], None, CacheProgress]


def _write(mine: list[ShardWork], others: list[ShardWork], num_workers: int) -> _Steps:
    """Writes the shards of this host, and then waits for the shards of other hosts."""
    done = yield from _write_here(mine) if num_workers == 1 else _write_apart(mine, num_workers)
    while others:
        for work in [work for work in others if _has_arrived(work)]:
            others.remove(work)
            split = read_json(work.done_path, SplitInfo)
            num_rows = done.num_rows + split.num_rows
            done = CacheProgress(0, num_rows, done.num_examples + split.num_examples, waits=True)
            yield work.task.name, done
        yield None, done._replace(waits=True)
        time.sleep(_POLL_SECONDS)
    return done


def _has_arrived(work: ShardWork) -> bool:
    """Returns whether another host has completed a shard; if so, downloads its description."""
    settings, path = work.settings, work.done_path
    if settings.store is not None and not path.exists():
        stored = settings.store / path.relative_to(settings.cache_dir).as_posix()
        if stored.is_file():
            write_atomically(path, stored.read_bytes())
    return path.exists()


def _write_here(works: Iterable[ShardWork]) -> _Steps:
    """Writes shards in this process."""
    done = CacheProgress(0, 0, 0)
    yield None, done
    for work in works:
        for num_rows, num_examples in write_shard(work):
            done = CacheProgress(0, done.num_rows + num_rows, done.num_examples + num_examples)
            yield None, done
        yield work.task.name, done
    return done


def _write_apart(works: Sequence[ShardWork], num_workers: int) -> _Steps:
    """Writes shards in worker processes."""
    # Forking is not safe, because the libraries `datasets` and `pyarrow` start threads.
    context = multiprocessing.get_context("spawn")
    with signals.blocked():  # also in the process that cleans up after `multiprocessing`
        counters = context.Array("q", 2)
    executor = ProcessPoolExecutor(
        min(num_workers, max(len(works), 1)), context, start_worker, (counters,)
    )
    futures = {}
    try:
        # A signal may reach the whole process group. The parent ends its workers.
        with signals.blocked():
            futures = {executor.submit(write_shard_in_worker, work): work for work in works}
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                yield futures[future].task.name, CacheProgress(0, counters[0], counters[1])
            yield None, CacheProgress(0, counters[0], counters[1])
        return CacheProgress(0, counters[0], counters[1])
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, probably because memory ran out. All finished parts "
            f"were kept; run the command again with --num-workers less than {num_workers}"
        ) from error
    finally:
        is_cut_short = any(not future.done() for future in futures)
        # A worker that is still starting prints a traceback if its parent ends first.
        executor.shutdown(wait=not is_cut_short, cancel_futures=True)
        if is_cut_short:
            # After a failure or an interruption, the next call will write incomplete shards again.
            for process in multiprocessing.active_children():
                process.kill()
