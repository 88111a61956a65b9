"""Finds the tasks of an evaluation in datasets, a token cache, or files."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from mtf.cache.format import TaskInfo
from mtf.cache.mixture import open_cache
from mtf.data.settings import TaskMixtureConfig
from mtf.errors import UserError, did_you_mean_split
from mtf.evaluation import metrics
from mtf.evaluation.infer_eval import find_task
from mtf.evaluation.rank_data import RankTask, file_tasks, load_cached, load_live
from mtf.evaluation.settings import RankFilesConfig, data_name
from mtf.evaluation.text_data import TextTask, cached_text_task, live_text_task
from mtf.loaders import open_mixture
from mtf.seqio import own
from mtf.sources.datasets import LOCAL, Rows, Source, check_downloaded, open_all
from mtf.tasks import t0
from mtf.tasks.missing import check_missing
from mtf.tasks.prompted import task_name
from mtf.tasks.t0 import ANLI_ROUNDS
from mtf.tasks.task import SCORE_EVAL, Task

# The attributes that all tasks of an evaluation share are name, dataset, prompt, load and absent.
EvaluationTask = RankTask | TextTask


def _grouped(name: str, key: str) -> tuple[str, str]:
    """Returns the dataset over whose prompts results are summarized, and the prompt of a task.

    `key` is the dataset's name with its subset. As in T0, ANLI's rounds are datasets. Files and
    SeqIO's tasks are called as the task.
    """
    short = name.removesuffix(SCORE_EVAL)
    dataset, _, subset = key.partition("/")
    if dataset in (*LOCAL, own.DATASET):
        return short, short
    prompt = short.removeprefix(task_name(dataset, subset or None, ""))
    last = short.rpartition("_")[2]
    return f"{key} {last}" if key == "anli" and last in ANLI_ROUNDS else key, prompt or short


def evaluation_tasks(
    data: TaskMixtureConfig | RankFilesConfig, *, download: bool = True
) -> tuple[EvaluationTask, ...]:
    """Returns the tasks of an evaluation, including those without data.

    Reads a mixture from `cache_dir` or, if that is None, its datasets. Files need a vocabulary.
    Unless `download`, raises NotCheckedError if datasets are on the Hugging Face hub.
    Raises UserError if the mixture does not exist, has tasks of documents, or has no data, if tasks
    have no data and `data.allow_missing_tasks` is not set, or if a metric's library is missing.
    """
    tasks: tuple[EvaluationTask, ...]
    if isinstance(data, RankFilesConfig):
        tasks = file_tasks(data)
    elif data.cache_dir is not None:
        tasks = _cached_tasks(data)
    else:
        tasks = _live_tasks(data, download)
    if all(task.load is None for task in tasks):
        reason = tasks[0].absent if tasks else "it has no tasks"
        raise UserError(f"no task of {data_name(data)} has data: {reason}")
    if isinstance(data, TaskMixtureConfig):
        missing, allowed = missing_tasks(tasks), data.allow_missing_tasks
        check_missing(data.mixture_or_task_name, len(tasks), missing, allowed)
    texts = [task for task in tasks if isinstance(task, TextTask)]
    for metric in dict.fromkeys(metric for task in texts for metric in task.metrics):
        metrics.require(metric)
    return tasks


def missing_tasks(tasks: Iterable[EvaluationTask]) -> dict[str, str]:
    """Returns the reason that a task has no data, by task, for those without data."""
    return {task.name: task.absent or "" for task in tasks if task.load is None}


def _check_evaluated(data: TaskMixtureConfig, tasks: Iterable[Task | TaskInfo]) -> str:
    """Returns the split to evaluate; raises UserError if a task consists of documents."""
    if data.eval_split is None:
        raise UserError("data.eval_split is None; set it to the split to evaluate")
    documents = [task.name for task in tasks if task.kind == "documents"]
    if documents:
        more = f" and {len(documents) - 1} more" if len(documents) > 1 else ""
        raise UserError(
            f"data.mixture_or_task_name: {data.mixture_or_task_name} contains tasks of documents "
            f"({documents[0]}{more}), which have no targets to generate or to rank; expected "
            "tasks with inputs and targets"
        )
    return data.eval_split


def _live_tasks(data: TaskMixtureConfig, download: bool) -> tuple[EvaluationTask, ...]:
    tasks = [task for task, _ in open_mixture(data).tasks]
    split = _check_evaluated(data, tasks)

    # Each task's records, or the reason that it has none.
    found: dict[str, Rows | UserError] = {}
    sources: dict[str, Source] = {}
    for task in tasks:
        try:
            sources[task.name] = (task.dataset, task.subset, task.source_split(split))
        except UserError as error:
            found[task.name] = error
    opened = open_all(sources.values(), data_dir=data.data_dir, download=download)
    found |= {name: opened[source] for name, source in sources.items()}
    check_downloaded(data.mixture_or_task_name, list(found.values()))
    made: list[EvaluationTask] = []
    for task in tasks:
        key = f"{task.dataset}/{task.subset}" if task.subset else task.dataset
        rows, group = found[task.name], _grouped(task.name, key)
        if isinstance(rows, UserError):
            kind = RankTask if task.kind == "rank" else TextTask
            made.append(kind(task.name, *group, None, str(rows)))
        elif task.kind == "rank":
            load = functools.partial(load_live, task, rows, split, data)
            made.append(RankTask(task.name, *group, load))
        else:
            made.append(live_text_task(task, *group, rows, data, split))
    return tuple(made)


def _cached_tasks(data: TaskMixtureConfig) -> tuple[EvaluationTask, ...]:
    cache = open_cache(data)
    mixture = cache.mixture(data.mixture_or_task_name)
    infos = [cache.task(task) for task in mixture.tasks]
    split = _check_evaluated(data, infos)
    made: list[EvaluationTask] = []
    for info in infos:
        group = _grouped(info.name, info.source or info.name)
        read = functools.partial(cache.split, info, split)
        if split not in info.splits:
            reason = (
                f"{cache.where} has no split {split!r} for {info.name}; available splits: "
                f"{', '.join(info.splits)}.{did_you_mean_split(split, info.splits)}"
            )
            kind = RankTask if info.kind == "rank" else TextTask
            made.append(kind(info.name, *group, None, reason))
        elif info.kind == "rank":
            load = functools.partial(load_cached, read, info, split, data.vocabulary)
            made.append(RankTask(info.name, *group, load))
        else:
            find = functools.partial(find_task, data, info.name)
            made.append(cached_text_task(info, *group, read, data, find))
    for name, reason in mixture.absent.items():
        kind = RankTask if name.endswith(SCORE_EVAL) else TextTask
        made.append(kind(name, *_grouped(name, _absent_dataset(name)), None, reason))
    return tuple(made)


def _absent_dataset(task: str) -> str:
    """Returns the dataset of a T0 task by its name."""
    rows = t0.select(*t0.ALL_GROUPS)
    found = [r.key for r in rows if task.startswith(task_name(r.name, r.subset, ""))]
    return max(found, key=len, default=task)
