"""Writing a cache: what there is to do, and doing it in processes.

What is finished stays: a shard is there as a whole or not at all, and so is a task. A second call
with the same settings goes on where the first one ended, however it ended.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtf.cache.format import (
    INCOMPLETE,
    CacheInfo,
    MixtureInfo,
    ShardFormat,
    SplitInfo,
    TaskInfo,
    feature_dtypes,
    mixture_path,
    read_json,
    write_json,
)
from mtf.cache.writer import (
    ArrayRecordFormat,
    ShardWork,
    open_rows,
    start_worker,
    write_shard,
    write_shard_in_worker,
)
from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import ENVIRONMENT_VARIABLE, MissingDatasetError
from mtf.tasks.mixtures import Mixture
from mtf.tasks.task import Task
from mtf.text.vocabularies import SentencePieceVocabulary, Vocabulary
from mtf.writing import LOCK_FILE

ROWS_PER_SHARD = 131_072
_POLL_SECONDS = 0.5
_NUM_OPENED_AT_ONCE = 16
# Dataset, subset and the dataset's own name of a split.
Source = tuple[str, str | None, str]
NOT_CHOSEN = "not chosen by --only"


@dataclass(frozen=True)
class CacheConfig:
    """How a cache is written.

    Attributes:
      cache_dir: where.
      vocabulary: for all features.
      format: of the shards.
      splits: of each task; None: train and, where the dataset has it, validation, and only
        validation of tasks that are ranked.
      seed: of the templates' random choices.
      num_shards: files of a split; None: one for each 131,072 rows.
      data_dir: the mirror of the datasets; None: as `mtf.sources.datasets` has it.
      only: patterns of task names; None: all.
      skip_missing: leave out tasks whose dataset is missing.
      max_rows: of every split; None: all.
    """

    cache_dir: Path
    vocabulary: Vocabulary
    format: ShardFormat = field(default_factory=ArrayRecordFormat)
    splits: tuple[str, ...] | None = None
    seed: int = 0
    num_shards: int | None = None
    data_dir: str | None = None
    only: tuple[str, ...] | None = None
    skip_missing: bool = False
    max_rows: int | None = None


@dataclass
class Plan:
    """What is to be written.

    Attributes:
      mixture: the mixture itself (`mtf.tasks.mixtures`).
      settings: how.
      infos: descriptions of the tasks to be written, by their names.
      works: their shards.
      finished: names of tasks that are in the cache already.
      absent: names of tasks that will not be there, with the reason.
      unsplit: names of tasks whose dataset has no validation split.
    """

    mixture: Mixture
    settings: CacheConfig
    infos: dict[str, TaskInfo] = field(default_factory=dict)
    works: list[ShardWork] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    unsplit: list[str] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Rows in all shards."""
        return sum(work.stop - work.start for work in self.works)


@dataclass(frozen=True)
class CacheProgress:
    """How far it is.

    Attributes:
      num_tasks: finished ones, of this call.
      num_rows: read ones.
      num_examples: written ones.
    """

    num_tasks: int = 0
    num_rows: int = 0
    num_examples: int = 0


def make_plan(mixture: Mixture, settings: CacheConfig) -> Plan:
    """Finds out what there is to write; writes nothing.

    Raises:
      UserError: datasets are missing (all of them are named); or the cache was made with another
        vocabulary, seed or templates.
    """
    check_cache_info(settings.cache_dir, cache_info(settings))
    plan = Plan(mixture, settings)
    missing: dict[str, None] = {}
    tasks = [task for task, _ in mixture.tasks]
    chosen = choose_tasks([task.name for task in tasks], settings.only)
    infos = {task.name: task_info(task, settings) for task in tasks if task.name in chosen}
    plan.finished = [info.name for info in infos.values() if is_finished(settings, info)]
    todo = [task for task in tasks if task.name in infos.keys() - set(plan.finished)]
    plan.absent = {task.name: NOT_CHOSEN for task in tasks if task.name not in chosen}
    opened = _open_all(todo, settings)
    for task in todo:
        info = infos[task.name]
        num_rows, problem = _count_rows(task, opened, settings)
        if problem is not None:
            plan.absent[task.name] = str(problem)
            # Story Cloze is given out through a form only: evaluation goes on without it.
            may_be_absent = problem.skippable_in_evaluation and task.kind == "rank"
            if not (settings.skip_missing or may_be_absent):
                missing[str(problem)] = None
            continue
        if settings.splits is None and "validation" not in num_rows:
            plan.unsplit.append(task.name)
        plan.infos[task.name] = info
        plan.works += _works(task, info, num_rows, settings)
    if missing:
        raise UserError(
            f"{len(missing)} datasets of {mixture.name} are missing (--skip-missing leaves their "
            "tasks out):\n  " + "\n  ".join(missing)
        )
    if len(plan.absent) == len(tasks):
        reasons = "\n  ".join(dict.fromkeys(plan.absent.values()))
        raise UserError(f"{mixture.name}: no task is left to be cached:\n  {reasons}")
    return plan


def run_plan(plan: Plan, num_workers: int, report: Callable[[CacheProgress], None]) -> None:
    """Writes all that is planned; `report` is told twice a second how far it is.

    Raises:
      UserError: a task fails on a row, a file cannot be written, or a process is killed.
    """
    settings = plan.settings
    write_json(settings.cache_dir / "cache.json", cache_info(settings))
    for info in plan.infos.values():
        _prepare_folder(settings, info, [work for work in plan.works if work.info is info])
    todo = [work for work in plan.works if not work.done_path.exists()]
    waiting = Counter(work.info.name for work in todo)
    num_rows = plan.num_rows - sum(work.stop - work.start for work in todo)
    num_tasks = 0
    for name in plan.infos:
        if not waiting[name]:
            _finish_task(plan, name)
            num_tasks += 1

    def done(work: ShardWork) -> None:
        nonlocal num_tasks
        waiting[work.info.name] -= 1
        if not waiting[work.info.name]:
            _finish_task(plan, work.info.name)
            num_tasks += 1

    def tell(rows: int, examples: int) -> None:
        report(CacheProgress(num_tasks, num_rows + rows, examples))

    if num_workers == 1:
        _run_here(todo, done, tell)
    else:
        _run_in_processes(todo, num_workers, done, tell)
    write_mixture(plan)


def write_mixture(plan: Plan) -> None:
    """Notes which tasks of the mixture are in the cache."""
    cache_dir = plan.settings.cache_dir
    absent = {
        name: reason
        for name, reason in plan.absent.items()
        if not (cache_dir / name / "info.json").exists()
    }
    mixture = plan.mixture
    info = MixtureInfo(
        name=mixture.name,
        vocabulary=mixture.vocabulary,
        fingerprint=mixture.fingerprint,
        tasks={task.name: rate for task, rate in mixture.tasks if task.name not in absent},
        absent=absent,
    )
    write_json(mixture_path(cache_dir, mixture.name), info)


def cache_info(settings: CacheConfig) -> CacheInfo:
    """Returns what all of the cache has in common."""
    vocabulary = settings.vocabulary
    path = vocabulary.path if isinstance(vocabulary, SentencePieceVocabulary) else "byt5"
    return CacheInfo(
        format=settings.format.name,
        vocabulary=vocabulary.fingerprint(),
        vocabulary_path=path,
        vocab_size=vocabulary.vocab_size,
        seed=settings.seed,
    )


def check_cache_info(cache_dir: Path, info: CacheInfo) -> None:
    """Checks that a cache, if there is one, was made with the same settings.

    Raises:
      UserError: it was not; names both.
    """
    path = cache_dir / "cache.json"
    if not path.exists():
        if cache_dir.is_dir() and any(file.name != LOCK_FILE for file in cache_dir.iterdir()):
            raise UserError(
                f"--output {cache_dir} holds something else than a cache; expected a cache, an "
                "empty directory or none"
            )
        return
    found = read_json(path, CacheInfo)
    if found.vocabulary != info.vocabulary:
        raise UserError(
            f"the cache {cache_dir} was made with the vocabulary {found.vocabulary} "
            f"({found.vocabulary_path}), not with {info.vocabulary} ({info.vocabulary_path}); "
            "choose another --output, or that vocabulary"
        )
    for name in ("seed", "format"):
        then, now = getattr(found, name), getattr(info, name)
        if then != now:
            raise UserError(
                f"the cache {cache_dir} was made with --{name} {then}, not {now}; "
                f"choose another --output, or --{name} {then}"
            )


def task_info(task: Task, settings: CacheConfig) -> TaskInfo:
    """Returns the description of a task that is to be written."""
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


def choose_tasks(names: Sequence[str], only: Iterable[str] | None) -> set[str]:
    """Returns the names that some patterns choose; raises UserError for one that has none."""
    if only is None:
        return set(names)
    chosen: set[str] = set()
    for pattern in only:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise UserError(f"--only {pattern}: no task matches.{did_you_mean(pattern, names)}")
        chosen.update(found)
    return chosen


def is_finished(settings: CacheConfig, info: TaskInfo) -> bool:
    """Returns whether a task is in the cache; raises UserError where it is there as another."""
    folder = settings.cache_dir / info.name
    for path in (folder, folder.with_name(folder.name + INCOMPLETE)):
        if not (path / "info.json").exists():
            continue
        found = read_json(path / "info.json", TaskInfo)
        if found.fingerprint != info.fingerprint:
            raise UserError(
                f"{path} was made from other templates or another definition: "
                f"{found.fingerprint} then, {info.fingerprint} now; choose another --output, or "
                "delete that folder"
            )
        if path == folder:
            if found.max_rows != info.max_rows:
                raise UserError(
                    f"{path} was made with --max-rows {found.max_rows}, not {info.max_rows}; "
                    "choose another --output, or delete that folder"
                )
            lacking = [s for s in settings.splits or () if s not in found.splits]
            if lacking:
                raise UserError(
                    f"{path} has the splits {', '.join(found.splits)}, not {', '.join(lacking)}; "
                    "choose another --output, or delete that folder to write it again"
                )
            return True
    return False


def _wanted_splits(task: Task, settings: CacheConfig) -> dict[str, bool]:
    """Returns which splits of a task are written, and whether the dataset must have each."""
    if settings.splits is not None:
        return dict.fromkeys(settings.splits, True)
    if task.kind == "rank":
        return {"validation": True}
    return {"train": True} | ({"validation": False} if "validation" in task.splits else {})


def _open_all(
    tasks: Sequence[Task], settings: CacheConfig
) -> dict[Source, int | MissingDatasetError]:
    """Returns the rows of each split of each dataset, or what is missing.

    They are opened side by side: asking the hub for what it does not have takes its time.
    """
    root = settings.data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    sources: dict[Source, None] = {}
    for task in tasks:
        for split, required in _wanted_splits(task, settings).items():
            source = (task.dataset, task.subset, task.source_split(split))
            # What a mirror has no validation split of is not completed from the hub.
            folder = root and Path(root, task.dataset, task.subset or "")
            if required or not folder or not folder.is_dir() or _in_mirror(folder, source[2]):
                sources[source] = None

    def num_rows(source: Source) -> int | MissingDatasetError:
        try:
            return len(open_rows(*source, settings.data_dir))
        except MissingDatasetError as error:
            return error

    with ThreadPoolExecutor(_NUM_OPENED_AT_ONCE) as executor:
        return dict(zip(sources, executor.map(num_rows, sources), strict=True))


def _in_mirror(folder: Path, split: str) -> bool:
    return (folder / f"{split}.parquet").is_file()


def _count_rows(
    task: Task, opened: Mapping[Source, int | MissingDatasetError], settings: CacheConfig
) -> tuple[dict[str, int], MissingDatasetError | None]:
    """Returns the rows of each split of a task that is to be written; or what is missing."""
    num_rows = {}
    for split, required in _wanted_splits(task, settings).items():
        found = opened.get((task.dataset, task.subset, task.source_split(split)))
        if isinstance(found, int):
            num_rows[split] = min(found, settings.max_rows or found)
        elif required:
            return {}, found
    return num_rows, None


def _works(
    task: Task, info: TaskInfo, num_rows: dict[str, int], settings: CacheConfig
) -> list[ShardWork]:
    works = []
    for split, total in num_rows.items():
        num_shards = settings.num_shards or max(1, -(-total // ROWS_PER_SHARD))
        edges = [total * shard // num_shards for shard in range(num_shards + 1)]
        works += [
            ShardWork(
                task=task,
                info=info,
                folder=settings.cache_dir / (task.name + INCOMPLETE),
                split=split,
                shard=shard,
                num_shards=num_shards,
                start=start,
                stop=stop,
                format=settings.format,
                vocabulary=settings.vocabulary,
                seed=settings.seed,
                data_dir=settings.data_dir,
            )
            for shard, (start, stop) in enumerate(itertools.pairwise(edges))
        ]
    return works


def _prepare_folder(settings: CacheConfig, info: TaskInfo, works: Sequence[ShardWork]) -> None:
    """Makes a task's folder, and removes from it what is not of this plan."""
    folder = settings.cache_dir / (info.name + INCOMPLETE)
    path = folder / "info.json"
    if folder.exists() and not (path.exists() and read_json(path, TaskInfo) == info):
        shutil.rmtree(folder)
    write_json(path, info)
    wanted = {path, *(work.path for work in works), *(work.done_path for work in works)}
    for file in folder.iterdir():
        if file not in wanted:
            file.unlink()


def _finish_task(plan: Plan, name: str) -> None:
    """Puts together the descriptions of a task's shards, and gives its folder its name."""
    cache_dir = plan.settings.cache_dir
    folder = cache_dir / (name + INCOMPLETE)
    info = plan.infos[name]
    info.splits.clear()
    for work in plan.works:
        if work.info is info:
            split = info.splits.setdefault(work.split, SplitInfo())
            split.add(read_json(work.done_path, SplitInfo))
    write_json(folder / "info.json", info)
    plan.settings.format.finish(folder, info)
    for work in plan.works:
        if work.info is info:
            work.done_path.unlink()
    os.replace(folder, cache_dir / name)


def _run_here(
    works: Sequence[ShardWork],
    done: Callable[[ShardWork], None],
    tell: Callable[[int, int], None],
) -> None:
    num_rows = num_examples = 0

    def tick(rows: int, examples: int) -> None:
        nonlocal num_rows, num_examples
        num_rows, num_examples = num_rows + rows, num_examples + examples
        tell(num_rows, num_examples)

    for work in works:
        write_shard(work, tick)
        done(work)
    tell(num_rows, num_examples)


def _run_in_processes(
    works: Sequence[ShardWork],
    num_workers: int,
    done: Callable[[ShardWork], None],
    tell: Callable[[int, int], None],
) -> None:
    # Spawned, not forked: datasets and pyarrow have threads of their own.
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 2)
    executor = ProcessPoolExecutor(
        min(num_workers, max(len(works), 1)), context, start_worker, (counters,)
    )
    futures: dict[Future[Any], ShardWork] = {}
    try:
        futures = {executor.submit(write_shard_in_worker, work): work for work in works}
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                done(futures[future])
            tell(counters[0], counters[1])
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, probably for lack of memory; what is finished is kept: "
            f"run the command again with fewer than {num_workers} --num-workers"
        ) from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if any(not future.done() for future in futures):
            # A failure or an interruption: what is half written is written again next time.
            for process in multiprocessing.active_children():
                process.kill()
