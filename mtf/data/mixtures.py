"""Opens the mixture that a config names, and the datasets of its tasks."""

from __future__ import annotations

import dataclasses
import sys

from mtf.base.errors import UserError
from mtf.data.settings import DatasetTaskConfig, TaskMixtureConfig
from mtf.data.sources.datasets import (
    SEQIO,
    MissingDatasetError,
    Rows,
    check_downloaded,
    open_all,
    open_split,
)
from mtf.data.sources.records import RecordSource
from mtf.data.tasks.columns import FromColumns
from mtf.data.tasks.missing import check_missing
from mtf.data.tasks.mixtures import Mixture, mixture
from mtf.data.tasks.prompts.templates import load_templates
from mtf.data.tasks.registry import HubSource, RowTask, import_module, is_registered
from mtf.data.tasks.task import SAME_SPLITS
from mtf.data.text.vocabularies import Vocabulary


def open_mixture(data: TaskMixtureConfig) -> Mixture:
    """Returns the mixture that a config selects; raises the same errors as `find_mixture`."""
    name = data.mixture_or_task_name
    if data.task is not None:
        return dataset_mixture(name, data.task, data.split, data.eval_split)
    return find_mixture(name, data.vocabulary, data.module, data.templates)


def find_mixture(
    name: str,
    vocabulary: Vocabulary,
    module: str | None = None,
    templates: str | None = None,
) -> Mixture:
    """Imports `module`, if it is given, and returns the mixture or task called `name`.

    Names that the module registers with mtf take precedence, followed by names that it registers
    with SeqIO. Raises UserError if the module cannot be imported, and the same errors as `mixture`.
    """
    if module is not None:
        import_module(module)
        if not is_registered(name) and "seqio" in sys.modules:
            from mtf.data.seqio_tasks import custom  # This import loads SeqIO.

            if (found := custom.find_mixture(name, vocabulary, module)) is not None:
                return found
    loaded = None if templates is None else load_templates(templates)
    return mixture(name, loaded)


def dataset_mixture(name: str, settings: DatasetTaskConfig, *splits: str | None) -> Mixture:
    """Returns a mixture of one task. A task that reads a dataset also has the splits `splits`."""
    source: HubSource | RecordSource | None = settings.records
    if source is None:
        found = SAME_SPLITS | {split: split for split in splits if split is not None}
        source = HubSource(str(settings.dataset), settings.subset, found)
    task = RowTask.of_source(
        name,
        source,
        FromColumns(settings.inputs, settings.targets),
        metric_names=settings.metrics,
        answer_choices=settings.answer_choices,
        inputs_add_eos=settings.inputs_add_eos,
        held_out=settings.held_out,
    )
    if settings.held_out is not None:
        if task.records and ("train" not in task.splits or "validation" in task.splits):
            raise UserError(
                "data.task.held_out makes the split validation from train, but the splits are "
                f"{', '.join(task.splits)}; expected train, and not validation"
            )
        divided = {**task.splits, "validation": task.splits["train"]}
        task = dataclasses.replace(task, splits=divided)
    return Mixture(name, ((task, None),))


def open_datasets(data: TaskMixtureConfig, *, download: bool = True) -> dict[str, Rows | UserError]:
    """Returns a dict that maps the name of each task to its records, or to an error if it has none.

    The records are those of `data.split`. Tasks that are registered with SeqIO are included only
    with an error: if they lack the split and their rate is not 0. If `download` is False, no
    dataset is downloaded from the Hugging Face hub.
    """
    tasks = open_mixture(data).tasks
    sources = {
        task.name: task.source_of(data.split)
        for task, _ in tasks
        if data.split in task.splits and task.dataset != SEQIO
    }
    opened = open_all(sources.values(), data_dir=data.data_dir, download=download)
    found: dict[str, Rows | UserError] = {name: opened[source] for name, source in sources.items()}
    for task, rate in tasks:
        if task.dataset == SEQIO and rate != 0:
            try:
                task.source_split(data.split)
            except UserError as error:
                found[task.name] = MissingDatasetError(str(error))
    return found


def check_datasets(data: TaskMixtureConfig) -> str:
    """Checks that the datasets of a mixture's tasks are available, and returns a summary.

    Raises UserError if a task has no dataset (unless `data.allow_missing_tasks` is set), if the
    evaluation split of a task consists of files that do not exist, or if a custom task fails on the
    first record of its dataset. Raises NotCheckedError if any dataset is on the Hugging Face hub
    and has not been downloaded.
    """
    tasks = [task for task, _ in open_mixture(data).tasks]
    name, num_tasks = data.mixture_or_task_name, len(tasks)
    opened = open_datasets(data, download=False)
    missing = {n: str(rows) for n, rows in opened.items() if isinstance(rows, MissingDatasetError)}
    check_missing(name, num_tasks, missing, data.allow_missing_tasks)
    check_downloaded(name, list(opened.values()))
    for task in tasks:
        if task.records is not None and (split := data.eval_split) in task.splits:
            open_split(*task.source_of(str(split)))
        rows = opened.get(task.name)
        if isinstance(task, RowTask):
            task.check_metrics()
        if task.is_custom and isinstance(rows, Rows):
            list(task.examples(rows.rows(0, 1), data.split))
    return f"{name}: {num_tasks - len(missing)} of {num_tasks} tasks, from local datasets"
