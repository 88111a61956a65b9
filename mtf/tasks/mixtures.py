"""All mixtures and tasks by name: T0's, mT0's, mT5's, T5's and the Romanian T5's.

`mixtures.csv` defines the mixtures; nothing is built until asked for.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import MissingDatasetError, open_split
from mtf.tasks import t0, text, translation
from mtf.tasks.prompted import SCORE_EVAL, PromptedTask
from mtf.tasks.prompts.templates import Templates, load_templates
from mtf.tasks.task import Task, VocabularyName, table

# A task with its rate; None: the number of its examples, at most t0.MAX_EXAMPLES_PER_DATASET.
Rated = tuple[Task, int | None]

# T0 could not cache it. Its list has 23 more tasks, of datasets that no mixture here has.
_BROKEN = "gigaword_summarize_"


@dataclass(frozen=True)
class Mixture:
    """Tasks that are trained on, or evaluated, together.

    Attributes:
      name: as it was asked for.
      tasks: each with its rate; examples are drawn in proportion to the rates. None: the number of
        the task's examples, at most 500,000.
      vocabulary: T5's, mT5's or the Romanian T5's.
    """

    name: str
    tasks: tuple[Rated, ...]
    vocabulary: VocabularyName = "t5"

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the text of the tasks' examples; a run stores it."""
        fingerprints = sorted({task.fingerprint for task, _ in self.tasks})
        return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@functools.cache
def _definitions() -> dict[str, dict[str, str]]:
    """Returns the rows of `mixtures.csv` by name, then by their older names.

    The columns are: groups: of datasets, see `t0.DatasetRow`. use: train (at T0's rates), rank or
    generate. prompts: all of a dataset's, those for its original task, or the first of those.
    without: parts of the names of tasks that are left out. unprompted: tasks of translation or
    text besides.
    """
    rows = table("mixtures.csv")
    older = {name: row for row in rows for name in row["other_names"].split()}
    return {row["name"]: row for row in rows} | older


def list_mixtures() -> tuple[str, ...]:
    """Returns the names of all mixtures, their older names last."""
    return tuple(_definitions())


def list_tasks(templates: Templates | None = None) -> tuple[str, ...]:
    """Returns the names of all tasks: text, translation, prompted, and the prompted ones' twins."""
    prompted = _prompted(templates or load_templates())
    twins = (n + SCORE_EVAL for n, (_, task) in prompted.items() if task.template.answer_choices)
    return (*_unprompted(), *prompted, *twins)


def mixture(
    name: str, templates: Templates | None = None, *, check_version: bool = True
) -> Mixture:
    """Returns one of `list_mixtures()`, or one of `list_tasks()` as a mixture of one.

    Args:
      name: of the mixture or task.
      templates: promptsource's, which only prompted tasks need; None: what `load_templates` finds.
      check_version: refuse templates of a version that would change the mixture.

    Raises:
      UserError: there is no such mixture, or no templates for it, or those of another version.
    """
    definition = _definitions().get(name)
    if definition is None:
        task = _unprompted().get(name) or _checked_task(name, templates, check_version)
        return Mixture(name, ((task, None),), task.vocabulary)
    tasks: list[Rated] = []
    if definition["groups"]:
        templates = templates or load_templates()
        if check_version:
            t0.check_templates(templates, t0.select(*definition["groups"].split()))
        tasks += _defined_prompts(definition, templates)
    if definition["unprompted"] == "opus100":
        tasks += translation.opus100_train()
    elif definition["unprompted"]:
        tasks += text.mc4(definition["unprompted"])
    return Mixture(name, tuple(tasks), cast(VocabularyName, definition["vocabulary"]))


def _defined_prompts(definition: Mapping[str, str], templates: Templates) -> Iterator[Rated]:
    """Yields the prompted tasks of a mixture with their rates."""
    left_out = definition["without"].split()
    for group in definition["groups"].split():
        for row in t0.select(group):
            tasks = t0.prompt_tasks(row, templates, group)
            if "original" in definition["prompts"]:
                tasks = tuple(task for task in tasks if task.template.original_task)
            for task in tasks[:1] if "first" in definition["prompts"] else tasks:
                if task.name == _BROKEN or any(part in task.name for part in left_out):
                    continue
                if definition["use"] != "rank":
                    yield task, t0.rate(row, templates) if definition["use"] == "train" else None
                elif task.template.answer_choices is not None:
                    yield task.score_eval(), None


def prompted_task(name: str, templates: Templates | None = None) -> PromptedTask:
    """Returns a task by its name, or the ranked twin of one; raises UserError if there is none."""
    templates = templates or load_templates()
    ranked = name.endswith(SCORE_EVAL)
    _, task = _prompted(templates).get(name.removesuffix(SCORE_EVAL), (None, None))
    if task is None or (ranked and task.template.answer_choices is None):
        known = [known for known in list_tasks(templates) if known.endswith(SCORE_EVAL) == ranked]
        raise UserError(f"there is no task {name!r}.{did_you_mean(name, known)}")
    return task.score_eval() if ranked else task


def split_available(
    of: Mixture, split: str, data_dir: str | os.PathLike[str] | None = None
) -> tuple[tuple[Task, ...], tuple[tuple[Task, str], ...]]:
    """Returns the tasks of a mixture that have data for a split, and those that lack it.

    Each of the latter comes with a message for the user. They are tasks of datasets that one gets
    by filling in a form (Story Cloze), and may lack data only in evaluation.

    Raises:
      MissingDatasetError: another dataset is missing, which would change the mixture's scores.
      UserError: a task has no such split.
    """

    @functools.cache
    def why_absent(dataset: str, subset: str | None, source_split: str) -> str | None:
        try:
            open_split(dataset, subset, source_split, data_dir=data_dir)
        except MissingDatasetError as error:
            if not error.skippable_in_evaluation:
                raise
            return str(error)
        return None

    found = [
        (task, why_absent(task.dataset, task.subset, task.source_split(split)))
        for task, _ in of.tasks
    ]
    present = tuple(task for task, why in found if why is None)
    return present, tuple((task, why) for task, why in found if why is not None)


def _checked_task(name: str, templates: Templates | None, check_version: bool) -> PromptedTask:
    """Returns a prompted task; `name` is no other task and no mixture."""
    try:
        templates = templates or load_templates()
    except UserError as error:
        known = [*list_mixtures(), *_unprompted()]
        raise UserError(
            f"there is no mixture {name!r}.{did_you_mean(name, known)} If it is a prompted task: "
            f"{error}"
        ) from error
    tasks = list_tasks(templates)
    if name not in tasks:
        hint = did_you_mean(name, [*list_mixtures(), *tasks])
        hint = hint or " `python -m mtf.data --list` has all."
        raise UserError(f"there is no mixture or task {name!r}.{hint}")
    if check_version:
        row, _ = _prompted(templates)[name.removesuffix(SCORE_EVAL)]
        t0.check_templates(templates, [row])
    return prompted_task(name, templates)


@functools.cache
def _unprompted() -> dict[str, Task]:
    return {**text.text_tasks(), **translation.translation_tasks()}


def _prompted(templates: Templates) -> dict[str, tuple[t0.DatasetRow, PromptedTask]]:
    """Returns the tasks to be generated by name, each with the dataset that has its templates."""
    return {
        task.name: (row, task)
        for group in (*t0.ALL_GROUPS, *t0.LANGUAGES)
        for row in t0.select(group)
        if row.key in templates.datasets
        for task in t0.prompt_tasks(row, templates, group)
    }
