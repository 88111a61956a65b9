"""All mixtures and tasks by name: T0's, mT0's, mT5's, T5's and the Romanian T5's.

Nothing is built until asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import MissingDatasetError, open_split
from mtf.tasks import mt0, t0, text, translation
from mtf.tasks.prompted import SCORE_EVAL, PromptedTask
from mtf.tasks.prompts.templates import Templates, load_templates
from mtf.tasks.t0 import DatasetRow, Rated, RatedPrompt
from mtf.tasks.task import Task, VocabularyName


@dataclass(frozen=True)
class Mixture:
    """Tasks that are trained on, or evaluated, together.

    Attributes:
      name: as it was asked for.
      tasks: each with its rate, to which the number of its examples is proportional. None: as many
        as the task has examples, at most 500,000.
      vocabulary: of which model: T5's, mT5's or the Romanian T5's.
    """

    name: str
    tasks: tuple[Rated, ...]
    vocabulary: VocabularyName = "t5"

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the text of the tasks' examples; a run stores it."""
        fingerprints = sorted({task.fingerprint for task, _ in self.tasks})
        return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Definition:
    rows: Callable[[], tuple[DatasetRow, ...]]
    tasks: Callable[[tuple[DatasetRow, ...], Templates], tuple[RatedPrompt, ...]]
    vocabulary: VocabularyName = "t5"
    unprompted: Callable[[], tuple[Rated, ...]] = tuple


def _each(
    make: Callable[[DatasetRow, Templates], tuple[PromptedTask, ...]], rank: bool = False
) -> Callable[[tuple[DatasetRow, ...], Templates], tuple[RatedPrompt, ...]]:
    """Returns what makes all tasks of some datasets, without rates, to be generated or ranked."""

    def tasks(rows: tuple[DatasetRow, ...], templates: Templates) -> tuple[RatedPrompt, ...]:
        made = [task for row in rows for task in make(row, templates)]
        return t0.ranked(made) if rank else tuple((task, None) for task in made)

    return tasks


_DEFINITIONS = {
    "t0_train": _Definition(lambda: t0.select(train={"BASE"}), t0.train),
    "t0+_train": _Definition(lambda: t0.select(train={"BASE", "GPT"}), t0.train),
    "t0++_train": _Definition(lambda: t0.select(train={"BASE", "GPT", "SGLUE"}), t0.train),
    "t0_train_one_og_prompt": _Definition(
        lambda: t0.select(train={"BASE"}),
        lambda rows, templates: t0.train_original_task(rows, templates, num_prompts=1),
    ),
    "t0_train_all_og_prompts": _Definition(
        lambda: t0.select(train={"BASE"}), t0.train_original_task
    ),
    "t0_eval_score_eval": _Definition(lambda: t0.select(evaluation={"BASE"}), t0.score_eval),
    "t0_train_score_eval": _Definition(lambda: t0.select(train={"BASE"}), t0.train_score_eval),
    "bias_fairness_eval_score_eval": _Definition(
        lambda: t0.select(evaluation={"BIAS_FAIRNESS"}),
        lambda rows, templates: t0.score_eval(rows, templates, original_task_only=False),
    ),
    # mT0's t0_train: its other names are not T0's.
    "mt5_d4_train": _Definition(lambda: t0.select(train={"BASE"}), t0.train, "mt5"),
    "mt5_d4_gpt_sglue_train": _Definition(
        lambda: t0.select(train={"BASE", "GPT", "SGLUE"}), t0.train, "mt5"
    ),
    "gpt_train": _Definition(mt0.gpt_rows, t0.train, "mt5"),
    "sglue_train": _Definition(lambda: t0.select(train={"SGLUE"}), t0.train, "mt5"),
    "t0_plus_train": _Definition(
        lambda: t0.select(train={"BASE"}) + mt0.gpt_rows(), t0.train, "mt5"
    ),
    "t0_plus_plus_train": _Definition(
        lambda: t0.select(train={"BASE"}) + mt0.gpt_rows() + t0.select(train={"SGLUE"}),
        t0.train,
        "mt5",
    ),
    "mt0_train_mixture": _Definition(mt0.train_rows, mt0.train, "mt5"),
    "mt0p_train_mixture": _Definition(
        lambda: mt0.train_rows() + mt0.xtreme_rows(), mt0.train, "mt5"
    ),
    "xnli_eval": _Definition(mt0.xnli_rows, _each(mt0.xnli_tasks), "mt5"),
    "xcopa_eval": _Definition(mt0.xcopa_rows, _each(mt0.xcopa_tasks), "mt5"),
    "xnli_score_eval": _Definition(mt0.xnli_rows, _each(mt0.xnli_tasks, rank=True), "mt5"),
    "xcopa_score_eval": _Definition(mt0.xcopa_rows, _each(mt0.xcopa_tasks, rank=True), "mt5"),
    "t0_train_plus_opus": _Definition(
        lambda: t0.select(train={"BASE"}), t0.train, "mt5", translation.opus100_train
    ),
    "t0pp_train_plus_opus": _Definition(
        lambda: t0.select(train={"BASE"}) + mt0.gpt_rows() + t0.select(train={"SGLUE"}),
        t0.train,
        "mt5",
        translation.opus100_train,
    ),
}
# Mixtures that need no templates.
_UNPROMPTED: dict[str, Callable[[], tuple[Rated, ...]]] = {
    "opus100_train_mixture": translation.opus100_train,
    "mc4": lambda: text.mc4("mc4"),
    "mc4_prefix_lm": lambda: text.mc4("mc4_prefix_lm"),
}
ALIASES = {
    "d4_train": "t0_train",
    "d4_gpt_train": "t0+_train",
    "d4_gpt_eval_train": "t0+_train",
    "d4_gpt_sglue_train": "t0++_train",
    "d4_train_one_og_prompt": "t0_train_one_og_prompt",
    "d4_train_all_og_prompts": "t0_train_all_og_prompts",
    "d4_score_eval": "t0_eval_score_eval",
    "d4_eval_score_eval": "t0_eval_score_eval",
    "d4_train_score_eval": "t0_train_score_eval",
}


def list_mixtures() -> tuple[str, ...]:
    """Returns the names of all mixtures, their older names last."""
    return (*_DEFINITIONS, *_UNPROMPTED, *ALIASES)


def list_tasks(templates: Templates | None = None) -> tuple[str, ...]:
    """Returns the names of all tasks: text, translation, prompted, and ranked twins of those.

    Raises:
      UserError: there are no templates.
    """
    prompted = _prompted(templates or load_templates())
    twins = (n + SCORE_EVAL for n, (_, task) in prompted.items() if task.template.answer_choices)
    return (*_unprompted_tasks(), *prompted, *twins)


def mixture(
    name: str, templates: Templates | None = None, *, check_version: bool = True
) -> Mixture:
    """Returns a mixture, or a task as a mixture of one, by its name.

    Args:
      name: one of `list_mixtures()` or `list_tasks()`.
      templates: of promptsource; None: where `load_templates` finds them. Text and translation
        need none.
      check_version: refuse templates of a version with which the mixture would be another.

    Raises:
      UserError: there is no such mixture, or no templates for it, or those of another version.
    """
    if name in _UNPROMPTED:
        return Mixture(name, _UNPROMPTED[name](), "mt5")
    task: Task | None = _unprompted_tasks().get(name)
    if task is not None:
        return Mixture(name, ((task, None),), task.vocabulary)
    definition = _DEFINITIONS.get(ALIASES.get(name, name))
    if definition is None:
        return _mixture_of_one(name, templates, check_version)
    templates = templates or load_templates()
    rows = definition.rows()
    if check_version:
        t0.check_templates(templates, rows)
    tasks: tuple[Rated, ...] = definition.tasks(rows, templates)
    return Mixture(name, tasks + definition.unprompted(), definition.vocabulary)


def prompted_task(name: str, templates: Templates | None = None) -> PromptedTask:
    """Returns one of the tasks that the mixtures are made of, or the ranked twin of one.

    Raises:
      UserError: there is no such task.
    """
    templates = templates or load_templates()
    ranked = name.endswith(SCORE_EVAL)
    found = _prompted(templates).get(name.removesuffix(SCORE_EVAL))
    if found is None or (ranked and found.task.template.answer_choices is None):
        known = [task for task in list_tasks(templates) if task.endswith(SCORE_EVAL) == ranked]
        raise UserError(f"there is no task {name!r}.{did_you_mean(name, known)}")
    return found.task.score_eval() if ranked else found.task


class Available(NamedTuple):
    """Which tasks of a mixture there is data for.

    Attributes:
      tasks: those that can be evaluated, in the mixture's order.
      absent: those that cannot, each with what to tell the user.
    """

    tasks: tuple[Task, ...]
    absent: tuple[tuple[Task, str], ...]


def split_available(
    of: Mixture, split: str, data_dir: str | os.PathLike[str] | None = None
) -> Available:
    """Returns the tasks of a mixture that can be evaluated on a split.

    What is left out is only what is given out through a form, Story Cloze; anything else that is
    missing is an error, as it would change the mixture's scores unseen. Training takes no such
    list: there `open_split` fails.

    Args:
      of: the mixture.
      split: the tasks' name of it.
      data_dir: the mirror, as in `open_split`.

    Raises:
      MissingDatasetError: there is no data for another task.
      UserError: a task has no such split.
    """
    reasons: dict[tuple[str, str | None, str], str | None] = {}
    present, absent = [], []
    for task, _ in of.tasks:
        source = (task.dataset, task.subset, task.source_split(split))
        if source not in reasons:
            reasons[source] = _why_absent(*source, data_dir)
        reason = reasons[source]
        if reason is None:
            present.append(task)
        else:
            absent.append((task, reason))
    return Available(tuple(present), tuple(absent))


def _why_absent(
    dataset: str, subset: str | None, split: str, data_dir: str | os.PathLike[str] | None
) -> str | None:
    try:
        open_split(dataset, subset, split, data_dir=data_dir)
    except MissingDatasetError as error:
        if not error.skippable_in_evaluation:
            raise
        return str(error)
    return None


def _mixture_of_one(name: str, templates: Templates | None, check_version: bool) -> Mixture:
    """Returns a prompted task as a mixture; it is the last thing that `name` can be."""
    try:
        templates = templates or load_templates()
    except UserError as error:
        known = [*list_mixtures(), *_unprompted_tasks()]
        raise UserError(
            f"there is no mixture {name!r}.{did_you_mean(name, known)} If it is a prompted task: "
            f"{error}"
        ) from error
    tasks = list_tasks(templates)
    if name not in tasks:
        hint = did_you_mean(name, [*list_mixtures(), *tasks])
        hint = hint or " `python -m mtf.data --list` has all."
        raise UserError(f"there is no mixture or task {name!r}.{hint}")
    row, _ = _prompted(templates)[name.removesuffix(SCORE_EVAL)]
    if check_version:
        t0.check_templates(templates, [row])
    task = prompted_task(name, templates)
    return Mixture(name, ((task, None),), task.vocabulary)


def _unprompted_tasks() -> dict[str, Task]:
    return {**text.text_tasks(), **translation.translation_tasks()}


class _Prompted(NamedTuple):
    row: DatasetRow
    task: PromptedTask


def _prompted(templates: Templates) -> dict[str, _Prompted]:
    """Returns the tasks to be generated by name, each with the row that its templates are of."""
    rows = t0.select({"BASE", "GPT", "SGLUE", "MT0"}, {"BASE", "BIAS_FAIRNESS"})
    makers = [
        (rows, t0.prompt_tasks),
        (mt0.xnli_rows(), mt0.xnli_tasks),
        (mt0.xcopa_rows(), mt0.xcopa_tasks),
    ]
    return {
        task.name: _Prompted(row, task)
        for rows, make in makers
        for row in rows
        if row.key in templates.datasets
        for task in make(row, templates)
    }
