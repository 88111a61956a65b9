"""Opens the mixture that a config names."""

from __future__ import annotations

from collections.abc import Callable

from mtf.data.settings import DatasetTaskConfig, TaskMixtureConfig
from mtf.errors import UserError
from mtf.sources.datasets import (
    FILES,
    OPENERS,
    PAIRS,
    MissingDatasetError,
    Rows,
    check_downloaded,
    open_all,
)
from mtf.tasks.columns import FromColumns
from mtf.tasks.missing import check_missing
from mtf.tasks.mixtures import Mixture, mixture
from mtf.tasks.prompts.templates import load_templates
from mtf.tasks.registry import RowTask, import_module, is_registered
from mtf.tasks.task import SAME_SPLITS
from mtf.text.vocabularies import Vocabulary

# Functions from a name, the vocabulary and the imported module to a mixture that the module has
# registered elsewhere, or None; `mtf.loaders` adds SeqIO's.
FINDERS: list[Callable[[str, Vocabulary, str], Mixture | None]] = []


def open_mixture(data: TaskMixtureConfig, *, check_version: bool = True) -> Mixture:
    """Returns the mixture of a config; raises UserError as `find_mixture`."""
    name = data.mixture_or_task_name
    if data.task is not None:
        return dataset_mixture(name, data.task, data.split, data.eval_split)
    return find_mixture(
        name, data.vocabulary, data.module, data.templates, check_version=check_version
    )


def find_mixture(
    name: str,
    vocabulary: Vocabulary,
    module: str | None = None,
    templates: str | None = None,
    *,
    check_version: bool = True,
) -> Mixture:
    """Returns a mixture or a task by name, after the import of `module`.

    What the module registers comes first: with mtf, then with SeqIO. Raises UserError as `mixture`,
    or if the module cannot be imported.
    """
    if module is not None:
        import_module(module)
        for find in FINDERS if not is_registered(name) else ():
            if (found := find(name, vocabulary, module)) is not None:
                return found
    loaded = None if templates is None else load_templates(templates)
    return mixture(name, loaded, check_version=check_version)


def dataset_mixture(name: str, settings: DatasetTaskConfig, *splits: str | None) -> Mixture:
    """Returns a dataset as a mixture of one task, which has `splits` and the usual ones."""
    if settings.files is not None:
        source: tuple[str, str | None] = (FILES if settings.tsv_header else PAIRS, name)
        found = settings.files
    else:
        source = (str(settings.dataset), settings.subset)
        found = SAME_SPLITS | {split: split for split in splits if split is not None}
    task = RowTask(
        name=name,
        dataset=source[0],
        subset=source[1],
        splits=found,
        to_text=FromColumns(settings.inputs, settings.targets),
        metric_names=settings.metrics,
        answer_choices=settings.answer_choices,
        inputs_add_eos=settings.inputs_add_eos,
    )
    return Mixture(name, ((task, None),))


def open_datasets(data: TaskMixtureConfig, *, download: bool = True) -> dict[str, Rows | UserError]:
    """Returns the records of `data.split`, or the reason they are missing, of each task.

    Leaves out tasks of other libraries (`OPENERS`), unless they lack the split and have a rate.
    `download` is that of `open_split`.
    """
    tasks = open_mixture(data).tasks
    sources = {
        task.name: (task.dataset, task.subset, task.source_split(data.split))
        for task, _ in tasks
        if data.split in task.splits and task.dataset not in OPENERS
    }
    opened = open_all(sources.values(), data_dir=data.data_dir, download=download)
    found: dict[str, Rows | UserError] = {name: opened[source] for name, source in sources.items()}
    for task, rate in tasks:
        if task.dataset in OPENERS and rate != 0:
            try:
                task.source_split(data.split)
            except UserError as error:
                found[task.name] = MissingDatasetError(str(error))
    return found


def check_datasets(data: TaskMixtureConfig) -> str:
    """Checks that the tasks of a mixture have datasets; returns a text about them.

    Raises UserError if tasks are missing, unless `data.allow_missing_tasks`, or if a task of the
    user's own does not fit the first record of its dataset; NotCheckedError if datasets are on the
    Hugging Face hub.
    """
    tasks = [task for task, _ in open_mixture(data).tasks]
    name, num_tasks = data.mixture_or_task_name, len(tasks)
    opened = open_datasets(data, download=False)
    missing = {n: str(rows) for n, rows in opened.items() if isinstance(rows, MissingDatasetError)}
    check_missing(name, num_tasks, missing, data.allow_missing_tasks)
    check_downloaded(name, list(opened.values()))
    for task in tasks:
        rows = opened.get(task.name)
        if isinstance(task, RowTask) and isinstance(rows, Rows):
            list(task.examples(rows.rows(0, 1), data.split))
    return f"{name}: {num_tasks - len(missing)} of {num_tasks} tasks, from local datasets"
