"""Plans and writes a cache, with several processes.

A shard or task exists only when it is complete, so a second call with the same settings continues
after the first one, even if that was killed.
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
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple

from mtf.cache.format import (
    CacheInfo,
    MixtureInfo,
    SplitInfo,
    TaskInfo,
    feature_dtypes,
    mixture_path,
    read_json,
    write_json,
)
from mtf.cache.recording import is_record
from mtf.cache.settings import CacheConfig
from mtf.cache.writer import (
    ReadShard,
    ShardWork,
    open_rows,
    start_worker,
    write_shard,
    write_shard_in_worker,
)
from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import LOCAL, MissingDatasetError, mirror_has
from mtf.sources.files import Rows
from mtf.tasks.mixtures import Mixture
from mtf.tasks.registry import RowTask
from mtf.tasks.task import Task
from mtf.writing import upload, write_atomically

NOT_CHOSEN = "not chosen by --only"
_NUM_REASONS_SHOWN = 10
_POLL_SECONDS = 0.5
_NUM_OPENED_AT_ONCE = 16
# Dataset, subset and the dataset's name of a split.
Source = tuple[str, str | None, str]
# Receives the numbers of records read and examples written by this call so far, and whether it only
# waits for other hosts.
Tell = Callable[[int, int, bool], None]


@dataclass
class Plan:
    """The tasks to be written.

    Attributes:
      mixture: mixture to be cached.
      settings: settings of the cache.
      works: name of a task to be written → its shards.
      finished: names of the tasks that are complete already.
      absent: name of a task that is left out → reason.
    """

    mixture: Mixture
    settings: CacheConfig
    works: dict[str, list[ShardWork]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Number of records in all shards."""
        return sum(work.num_rows for works in self.works.values() for work in works)

    def add(
        self,
        task: Task,
        info: TaskInfo,
        split: str,
        shards: Sequence[tuple[int, int, ReadShard | None]],
        rows: Rows | None = None,
    ) -> None:
        """Adds a split; `shards` are `start`, `stop` and `read` of each `ShardWork`."""
        self.works.setdefault(task.name, []).extend(
            ShardWork(task, info, self.settings, split, shard, len(shards), *bounds, rows=rows)
            for shard, bounds in enumerate(shards)
        )

    def check(self, missing: Iterable[str], kind: str) -> None:
        """Raises UserError if anything of a `kind` is missing, or no task is left."""
        name, reasons = self.mixture.name, list(dict.fromkeys(missing))
        if reasons:
            raise UserError(
                f"{len(reasons)} {kind} of {name} are missing (to leave out their tasks, add "
                f"--skip-missing):{_listed(reasons)}"
            )
        if len(self.absent) == len(self.mixture.tasks):
            causes = list(dict.fromkeys(self.absent.values()))
            raise UserError(f"{name}: no task has data:{_listed(causes)}")


def _listed(reasons: Sequence[str]) -> str:
    """Returns the first reasons, each in a line, and the number of the others."""
    more = len(reasons) - _NUM_REASONS_SHOWN
    lines = [*reasons[:_NUM_REASONS_SHOWN], *([f"… and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)


class Share(NamedTuple):
    """Shards that this host writes, and shards that other hosts write."""

    own: list[ShardWork]
    others: list[ShardWork] = []  # noqa: RUF012 (never changed)


class CacheProgress(NamedTuple):
    """Numbers of finished tasks, records read and examples written by this call.

    `waits` says that all of this host's shards are written, and others' are waited for.
    """

    num_tasks: int
    num_rows: int
    num_examples: int
    waits: bool = False


def begin_plan(
    mixture: Mixture, settings: CacheConfig, describe: Callable[[Task, CacheConfig], TaskInfo]
) -> tuple[Plan, list[tuple[Task, TaskInfo]]]:
    """Returns a plan without works, and the tasks to be written with their `describe(…)`.

    Raises UserError if the cache was made with another vocabulary, seed or templates, or a pattern
    of `settings.only` matches no task.
    """
    _check_cache_info(settings)
    plan, todo = Plan(mixture, settings), []
    names = [task.name for task, _ in mixture.tasks]
    chosen = set(names if settings.only is None else ())
    for pattern in settings.only or ():
        found = fnmatch.filter(names, pattern)
        if not found:
            raise UserError(f"--only {pattern} matches no task.{did_you_mean(pattern, names)}")
        chosen.update(found)
    for task, _ in mixture.tasks:
        if is_record(task.name):
            raise UserError(f"a cache has no room for a task named {task.name!r}; rename the task")
        if task.name not in chosen:
            plan.absent[task.name] = NOT_CHOSEN
        elif _is_finished(settings, info := describe(task, settings)):
            plan.finished.append(task.name)
        else:
            todo.append((task, info))
    return plan, todo


def make_plan(mixture: Mixture, settings: CacheConfig) -> Plan:
    """Plans to render and tokenize datasets; writes nothing.

    Raises UserError if datasets are missing (the message names all), if a task of the user's own
    fails on the first record, or as `begin_plan`.
    """
    plan, todo = begin_plan(mixture, settings, task_info)
    opened = _open_all([task for task, _ in todo], settings)
    missing = []
    for task, info in todo:
        wanted = _sources(task, settings)
        found = [opened[source] for source, required in wanted.values() if required]
        problem = next((f for f in found if isinstance(f, MissingDatasetError)), None)
        if problem is not None:
            plan.absent[task.name] = str(problem)
            may_be_absent = problem.skippable_in_evaluation and task.kind == "rank"
            if not (settings.skip_missing or may_be_absent):
                name = f"task {task.name}: " if task.dataset in LOCAL else ""
                missing.append(f"{name}{problem}")
            continue
        for split, (source, _) in wanted.items():
            rows = opened.get(source)
            if isinstance(rows, Rows):
                if isinstance(task, RowTask):
                    for row in rows.rows(0, 1):  # Mistakes of the user show here, or soon.
                        task.row_examples(row, 0, split, settings.seed)
                num_rows = min(len(rows), settings.max_rows or len(rows))
                num_shards = settings.num_shards_of(num_rows)
                edges = [num_rows * shard // num_shards for shard in range(num_shards + 1)]
                shards = [(*bounds, None) for bounds in itertools.pairwise(edges)]
                plan.add(task, info, split, shards, rows.kept())
    plan.check(missing, "datasets")
    return plan


Report = Callable[[CacheProgress], None]


def run_plan(
    plan: Plan, num_workers: int, report: Report, share: Callable[[list[ShardWork]], Share] = Share
) -> None:
    """Executes a plan with `num_workers` processes; 1 is this process.

    Calls `report` about twice a second. `share` divides the shards that are not complete between
    this process and other hosts. Raises UserError if a task fails on a record, a file cannot be
    written, or a process is killed.
    """
    settings = plan.settings
    write_json(settings.cache_dir / "cache.json", cache_info(settings))
    settings.publish(settings.cache_dir / "cache.json")
    for works in plan.works.values():
        _prepare_folder(works)
    todo = [w for works in plan.works.values() for w in works if not w.done_path.exists()]
    num_left = Counter(work.task.name for work in todo)
    num_rows_before = plan.num_rows - sum(work.num_rows for work in todo)
    finished = [name for name in plan.works if not num_left[name]]
    for name in finished:
        _finish_task(plan.works[name])

    def tell(num_rows: int, num_examples: int, waits: bool) -> None:
        report(CacheProgress(len(finished), num_rows_before + num_rows, num_examples, waits))

    divided = share(todo)
    with contextlib.closing(_written(divided, num_workers, tell)) as names:
        for name in names:
            num_left[name] -= 1
            if not num_left[name]:
                _finish_task(plan.works[name])
                finished.append(name)
    cache_dir, mixture = settings.cache_dir, plan.mixture
    there = {path.parent.name for path in cache_dir.glob("*/info.json")}
    absent = {name: reason for name, reason in plan.absent.items() if name not in there}
    rates = {task.name: rate for task, rate in mixture.tasks}
    tasks = {name: rate for name, rate in rates.items() if name not in absent}
    all_rates = rates if absent else {}
    about = (mixture.name, mixture.vocabulary, mixture.fingerprint)
    info = MixtureInfo(*about, tasks, absent, all_rates)
    write_json(mixture_path(cache_dir, mixture.name), info)
    settings.publish(mixture_path(cache_dir, mixture.name))


def write_share(works: Sequence[ShardWork], num_workers: int, report: Report) -> None:
    """Writes shards of a plan that another host executes, which has created the folders."""
    for work in works:  # Of a cache in a store, each host has its own folders.
        work.folder.mkdir(parents=True, exist_ok=True)

    def tell(num_rows: int, num_examples: int, waits: bool) -> None:
        report(CacheProgress(0, num_rows, num_examples, waits))

    with contextlib.closing(_written(Share([*works]), num_workers, tell)) as names:
        for _ in names:
            pass


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
            "use another --output, or set --vocabulary and --extra-ids to the cache's vocabulary"
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
    objective = getattr(task, "objective", None)
    if objective is not None:
        objective = {"type": type(objective).__name__, **dataclasses.asdict(objective)}
    return TaskInfo(
        name=task.name,
        kind=task.kind,
        fingerprint=task.fingerprint,
        features=feature_dtypes(task.kind, settings.vocabulary.vocab_size),
        inputs_add_eos=task.inputs_add_eos,
        targets_add_eos=task.targets_add_eos,
        metrics=list(task.metrics),
        objective=objective,
        source=task.dataset + (f"/{task.subset}" if task.subset else ""),
        max_rows=settings.max_rows,
    )


def _is_finished(settings: CacheConfig, info: TaskInfo) -> bool:
    """Returns whether a task is complete; raises UserError if it was made with other settings."""
    folder = settings.cache_dir / info.name
    if not (folder / "info.json").exists():
        return False  # What is incomplete is continued, or, if the task has changed, deleted.
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
    """Returns the source of each split to be written, and whether it must exist."""
    if settings.splits is not None:
        required = dict.fromkeys(settings.splits, True)
    elif task.kind == "rank":
        required = {"validation": True}
    else:
        is_optional = task.dataset not in LOCAL  # A task names its own files.
        found = [split for split in ("train", "validation") if split in task.splits]
        required = {
            split: split == "train" or not is_optional
            for split in found or task.splits or ("train",)
        }
    sources: dict[str, tuple[Source, bool]] = {}
    for split, must_be_there in required.items():
        name = task.source_split(split) if task.splits else split
        sources[split] = (task.dataset, task.subset, name), must_be_there
    return sources


def _open_all(
    tasks: Sequence[Task], settings: CacheConfig
) -> dict[Source, Rows | MissingDatasetError]:
    """Returns the records of each source, which are counted, or why it is missing.

    Sources are opened in parallel, because the hub takes long to report a missing dataset.
    """
    sources: dict[Source, None] = {}
    for task in tasks:
        # If a mirror has the dataset without a split that is not required, the hub is not used.
        for source, required in _sources(task, settings).values():
            if required or mirror_has(source, settings.data_dir) is not False:
                sources[source] = None

    def counted(source: Source) -> Rows | MissingDatasetError:
        try:
            rows = open_rows(*source, settings.data_dir)
            len(rows)
            return rows
        except MissingDatasetError as error:
            return error

    with ThreadPoolExecutor(_NUM_OPENED_AT_ONCE) as executor:
        return dict(zip(sources, executor.map(counted, sources), strict=True))


def _prepare_folder(works: Sequence[ShardWork]) -> None:
    """Creates a task's folder, and deletes files of other plans from it."""
    folder, info = works[0].folder, works[0].info
    path = folder / "info.json"
    if folder.exists() and not (path.exists() and read_json(path, TaskInfo) == info):
        shutil.rmtree(folder)
        if store := works[0].settings.store:
            (store / folder.name).rmtree()
            (store / info.name).rmtree()
    write_json(path, info)
    works[0].settings.publish(path)
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


def _written(share: Share, num_workers: int, tell: Tell) -> Generator[str, None, None]:
    """Writes this host's shards, then waits for those of others; after each, yields its task."""
    num_rows = num_examples = 0

    def tell_own(rows: int, examples: int, waits: bool) -> None:
        nonlocal num_rows, num_examples
        num_rows, num_examples = rows, examples
        tell(rows, examples, waits)

    write = _written_here if num_workers == 1 else _written_in_processes
    yield from write(share.own, num_workers, tell_own)
    waited_for = list(share.others)
    while waited_for:
        for work in [work for work in waited_for if _has_arrived(work)]:
            waited_for.remove(work)
            split = read_json(work.done_path, SplitInfo)
            num_rows, num_examples = num_rows + split.num_rows, num_examples + split.num_examples
            yield work.task.name
        tell(num_rows, num_examples, True)
        time.sleep(_POLL_SECONDS)


def _has_arrived(work: ShardWork) -> bool:
    """Returns whether another host has completed a shard; downloads its description."""
    settings, path = work.settings, work.done_path
    if settings.store is not None and not path.exists():
        stored = settings.store / path.relative_to(settings.cache_dir).as_posix()
        if stored.is_file():
            write_atomically(path, stored.read_bytes())
    return path.exists()


def _written_here(works: Iterable[ShardWork], _: int, tell: Tell) -> Generator[str, None, None]:
    """Writes shards; after each, yields the name of its task."""
    num_rows = num_examples = 0

    def tick(rows: int, examples: int) -> None:
        nonlocal num_rows, num_examples
        num_rows, num_examples = num_rows + rows, num_examples + examples
        tell(num_rows, num_examples, False)

    tell(0, 0, False)
    for work in works:
        write_shard(work, tick)
        yield work.task.name
    tell(num_rows, num_examples, False)


def _written_in_processes(
    works: Sequence[ShardWork], num_workers: int, tell: Tell
) -> Generator[str, None, None]:
    """Writes shards in other processes; after each, yields the name of its task."""
    # Spawned, not forked: datasets and pyarrow start threads.
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 2)
    executor = ProcessPoolExecutor(
        min(num_workers, max(len(works), 1)), context, start_worker, (counters,)
    )
    futures = {}
    try:
        futures = {executor.submit(write_shard_in_worker, work): work for work in works}
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                yield futures[future].task.name
            tell(counters[0], counters[1], False)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, probably because memory ran out. Finished parts are "
            f"kept; run the command again with fewer than --num-workers {num_workers}"
        ) from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if any(not future.done() for future in futures):
            # After a failure or an interruption, incomplete shards are written again next time.
            for process in multiprocessing.active_children():
                process.kill()
