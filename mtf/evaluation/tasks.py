"""Finds the tasks of an evaluation in datasets, a token cache, or files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mtf.base.errors import UserError, did_you_mean_split
from mtf.data.cache.format import TaskInfo
from mtf.data.cache.mixture import open_cache
from mtf.data.mixtures import open_mixture
from mtf.data.settings import TaskMixtureConfig
from mtf.data.sources.datasets import SEQIO, Rows, Source, check_downloaded, open_all
from mtf.data.sources.records import CUSTOM, FILES, PAIRS
from mtf.data.tasks import t0
from mtf.data.tasks.missing import check_missing
from mtf.data.tasks.prompted import task_name
from mtf.data.tasks.t0 import ANLI_ROUNDS
from mtf.data.tasks.task import SCORE_EVAL, Task
from mtf.evaluation import metrics
from mtf.evaluation.infer_eval import Compared, comparison, find_task
from mtf.evaluation.report import Kind
from mtf.evaluation.settings import RankFilesConfig
from mtf.evaluation.task_data import (
    TaskData,
    load_cached,
    load_cached_text,
    load_files,
    load_live,
    load_live_text,
)


@dataclass(frozen=True)
class EvaluationTask(Compared):
    """A task whose answer choices are ranked, or whose targets are generated and scored.

    Attributes:
      name: unique name of the task.
      dataset: name of the dataset; reports summarize the results over the prompts of a dataset.
      prompt: short name of the prompt.
      kind: "rank" if answer choices are ranked, "generate" if targets are generated.
      load: function that reads the examples and returns `TaskData`; None if there is no data.
      absent: the reason why the task has no data; None if it has data.
    """

    name: str
    dataset: str
    prompt: str
    kind: Kind
    load: Callable[[], TaskData[Any]] | None
    absent: str | None = None


def _grouped(name: str, key: str) -> tuple[str, str]:
    """Returns the dataset and the prompt under which a task is reported.

    `key` is `DATASET/SUBSET` or, without a subset, `DATASET`. As in T0, each round of ANLI is
    reported as a dataset. If there is no dataset, both names are the name of the task.
    """
    short = name.removesuffix(SCORE_EVAL)
    dataset, _, subset = key.partition("/")
    if dataset in (FILES, PAIRS, CUSTOM, SEQIO):
        return short, short
    prompt = short.removeprefix(task_name(dataset, subset or None, ""))
    last = short.rpartition("_")[2]
    return f"{key} {last}" if key == "anli" and last in ANLI_ROUNDS else key, prompt or short


def evaluation_tasks(
    data: TaskMixtureConfig | RankFilesConfig, *, download: bool = True
) -> tuple[EvaluationTask, ...]:
    """Returns the tasks of an evaluation, including those without data.

    A mixture is read from `data.cache_dir` or, if this is None, from its datasets. For files,
    `data.vocabulary` must be set.

    Raises NotCheckedError if datasets must be downloaded from the Hugging Face hub but `download`
    is False. Raises UserError if the mixture does not exist, has no data or has a task that
    consists of documents, if any task has no data and `data.allow_missing_tasks` is False, or if a
    metric's library is missing.
    """
    tasks: tuple[EvaluationTask, ...]
    if isinstance(data, RankFilesConfig):
        # Read all files now to find errors before anything is computed.
        loaded = load_files(data)
        tasks = tuple(
            EvaluationTask(stem, stem, stem, "rank", functools.partial(loaded.__getitem__, stem))
            for stem in loaded
        )
    else:
        tasks = _live_tasks(data, download) if data.cache_dir is None else _cached_tasks(data)
        missing, allowed = missing_tasks(tasks), data.allow_missing_tasks
        check_missing(data.mixture_or_task_name, len(tasks), missing, allowed)
    for metric in dict.fromkeys(metric for task in tasks for metric in task.metrics):
        metrics.require(metric)
    return tasks


def missing_tasks(tasks: Iterable[EvaluationTask]) -> dict[str, str]:
    """Returns a dict mapping the name of each task without data to the reason."""
    return {task.name: task.absent or "" for task in tasks if task.load is None}


def _check_evaluated(data: TaskMixtureConfig, tasks: Iterable[Task | TaskInfo]) -> str:
    """Returns the split to evaluate.

    Raises UserError if `data.eval_split` is None or if any task consists of documents.
    """
    if data.eval_split is None:
        raise UserError("data.eval_split is None; set it to the split to evaluate")
    for task in tasks:
        if task.kind == "documents":
            raise UserError(
                f"data.mixture_or_task_name: {task.name} contains documents, which have no targets "
                "to generate or to rank; expected tasks with inputs and targets"
            )
    return data.eval_split


def _live_tasks(data: TaskMixtureConfig, download: bool) -> tuple[EvaluationTask, ...]:
    tasks = [task for task, _ in open_mixture(data).tasks]
    split = _check_evaluated(data, tasks)

    # Task name → rows of the task, or the error if they cannot be opened.
    found: dict[str, Rows | UserError] = {}
    sources: dict[str, Source] = {}
    for task in tasks:
        try:
            sources[task.name] = task.source_of(split)
        except UserError as error:
            found[task.name] = error
    opened = open_all(sources.values(), data_dir=data.data_dir, download=download)
    found |= {name: opened[source] for name, source in sources.items()}
    check_downloaded(data.mixture_or_task_name, list(found.values()))
    made: list[EvaluationTask] = []
    for task in tasks:
        key = f"{task.dataset}/{task.subset}" if task.subset else task.dataset
        rows, about = found[task.name], (task.name, *_grouped(task.name, key), _kind(task))
        if isinstance(rows, UserError):
            made.append(EvaluationTask(*about, None, str(rows)))
            continue
        read = load_live if task.kind == "rank" else load_live_text
        load = functools.partial(read, task, rows, split, data)
        compared = Compared()
        if task.kind == "generate":
            scorer = task.scorer(split, data.task_feature_lengths)
            compared = comparison(task, scorer=scorer)
        made.append(EvaluationTask(*about, load, **vars(compared)))
    return tuple(made)


def _cached_tasks(data: TaskMixtureConfig) -> tuple[EvaluationTask, ...]:
    cache = open_cache(data)
    mixture = cache.mixture(data.mixture_or_task_name)
    infos = [cache.task(task) for task in mixture.tasks]
    split = _check_evaluated(data, infos)
    made: list[EvaluationTask] = []
    for info in infos:
        about = (info.name, *_grouped(info.name, info.source or info.name), _kind(info))
        read = functools.partial(cache.split, info, split)
        if split not in info.splits:
            reason = (
                f"{cache.where} has no split {split!r} for {info.name}; available splits: "
                f"{', '.join(info.splits)}.{did_you_mean_split(split, info.splits)}"
            )
            made.append(EvaluationTask(*about, None, reason))
        elif info.kind == "rank":
            load = functools.partial(load_cached, read, info, split, data.vocabulary)
            made.append(EvaluationTask(*about, load))
        else:
            scorer = None
            if info.source.startswith(SEQIO):
                # The cache contains SeqIO's examples in SeqIO's order.
                limit = info.splits[split].num_examples
                source = find_task(data, info.name)
                scorer = source.scorer(split, data.task_feature_lengths, limit)
            texts = functools.partial(load_cached_text, read, info, data.vocabulary)
            compared = comparison(info, scorer=scorer, data=data)
            made.append(EvaluationTask(*about, texts, **vars(compared)))
    for name, reason in mixture.absent.items():
        # Only T0 tasks can be absent from a cache. Their names begin with the dataset's name.
        rows = t0.select(*t0.ALL_GROUPS)
        keys = [row.key for row in rows if name.startswith(task_name(row.name, row.subset, ""))]
        group = _grouped(name, max(keys, key=len, default=name))
        kind: Kind = "rank" if name.endswith(SCORE_EVAL) else "generate"
        made.append(EvaluationTask(name, *group, kind, None, reason))
    return tuple(made)


def _kind(task: Task | TaskInfo) -> Kind:
    return "rank" if task.kind == "rank" else "generate"
