"""All mixtures by name: T0's, their older names, and mT0's. Nothing is built until asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mtf.errors import UserError, did_you_mean
from mtf.prompts.templates import Templates, fingerprint, load_templates
from mtf.tasks import mt0, t0
from mtf.tasks.t0 import Dataset, Rated
from mtf.tasks.task import SCORE_EVAL, Task


@dataclass(frozen=True)
class Mixture:
    """Tasks that are trained on, or evaluated, together.

    Attributes:
      name: as it was asked for.
      tasks: each with its rate, to which the number of its examples is proportional. None: as many
        as the task has examples, at most 500,000.
      vocabulary: of which model: T5's or mT5's.
    """

    name: str
    tasks: tuple[Rated, ...]
    vocabulary: Literal["t5", "mt5"] = "t5"

    @property
    def fingerprint(self) -> str:
        """Hash of the templates that the tasks use; a run stores it."""
        return fingerprint({task.template for task, _ in self.tasks})


@dataclass(frozen=True)
class _Definition:
    rows: Callable[[], tuple[Dataset, ...]]
    tasks: Callable[[tuple[Dataset, ...], Templates], tuple[Rated, ...]]
    vocabulary: Literal["t5", "mt5"] = "t5"


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
    return (*_DEFINITIONS, *ALIASES)


def mixture(
    name: str, templates: Templates | None = None, *, check_version: bool = True
) -> Mixture:
    """Returns a mixture by its name.

    Args:
      name: one of `list_mixtures()`.
      templates: of promptsource; None: where `load_templates` finds them.
      check_version: refuse templates of a version with which the mixture would be another.

    Raises:
      UserError: there is no such mixture, or no templates for it, or those of another version.
    """
    if name not in _DEFINITIONS and name not in ALIASES:
        raise UserError(
            f"there is no mixture {name!r}.{did_you_mean(name, list_mixtures())} "
            f"All of them: {', '.join(list_mixtures())}"
        )
    definition = _DEFINITIONS[ALIASES.get(name, name)]
    templates = templates or load_templates()
    rows = definition.rows()
    if check_version:
        t0.check_templates(templates, rows)
    return Mixture(name, definition.tasks(rows, templates), definition.vocabulary)


def prompted_task(name: str, templates: Templates | None = None) -> Task:
    """Returns one of the tasks that the mixtures are made of, or the ranked twin of one.

    Raises:
      UserError: there is no such task.
    """
    templates = templates or load_templates()
    tasks = {
        task.name: task
        for row in t0.select({"BASE", "GPT", "SGLUE", "MT0"}, {"BASE", "BIAS_FAIRNESS"})
        for task in t0.prompt_tasks(row, templates)
    }
    task = tasks.get(name.removesuffix(SCORE_EVAL))
    if task is None or (name.endswith(SCORE_EVAL) and task.template.answer_choices is None):
        rankable = [t.name for t in tasks.values() if t.template.answer_choices is not None]
        known = [task_name + SCORE_EVAL for task_name in rankable]
        hint = did_you_mean(name, known if name.endswith(SCORE_EVAL) else tasks)
        raise UserError(f"there is no task {name!r}.{hint}")
    return task.score_eval() if name.endswith(SCORE_EVAL) else task
