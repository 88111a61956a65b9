"""Looks up custom mixtures and tasks, and those of T0, mT0, T5, mT5 and others, by name."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from mtf.base.errors import UserError, did_you_mean
from mtf.data.sources.datasets import DataDir, Rows, open_all
from mtf.data.tasks import dates, registry, t0, text, translation
from mtf.data.tasks.prompted import SCORE_EVAL, PromptedTask, task_name
from mtf.data.tasks.prompts.templates import Templates, load_templates
from mtf.data.tasks.task import Task, VocabularyName, table

# Prefix that the names of T0's SeqIO tasks have in mixtures with mT5's vocabulary.
MT5_PREFIX = "mt5_"
# A task and its rate. The rate None stands for the number of the task's examples, but at most
# MAX_EXAMPLES_PER_DATASET.
Rated = tuple[Task, float | None]

# T0 excluded this task because it could not be cached. T0 also excluded 23 other tasks for this
# reason, but no mixture in this module uses their datasets.
_BROKEN = "gigaword_summarize_"


@dataclass(frozen=True)
class Mixture:
    """Tasks that are mixed for training or evaluated together.

    Attributes:
      name: current or former name of the mixture.
      tasks: pairs of a task and its rate. Examples are drawn in proportion to the rates. The rate
        None stands for the number of the task's examples, but at most 500,000.
      vocabulary: vocabulary for which the mixture was designed.
    """

    name: str
    tasks: tuple[Rated, ...]
    vocabulary: VocabularyName = "t5"

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the text of the examples; each run stores it."""
        fingerprints = sorted({task.fingerprint for task, _ in self.tasks})
        return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@functools.cache
def _definitions() -> dict[str, dict[str, str]]:
    """Returns a dict mapping the current and former names of mixtures to rows of `mixtures.csv`.

    Columns:
      groups: groups of datasets (see `t0.DatasetRow`).
      use: "train" (with T0's rates), "rank" or "generate".
      prompts: "all" prompts of a dataset, those for its "original" task, only the "first original"
        prompt, or those used in mT0's "paper".
      without: strings; a task is excluded if its name contains any of them.
      unprompted: additional translation or text tasks.
      inputs_eos: whether the inputs of prompted tasks end with EOS, as in mT0's repository until
        2021-12-15.
    """
    rows = table("mixtures.csv")
    older = {name: row for row in rows for name in row["other_names"].split()}
    return {row["name"]: row for row in rows} | older


def list_mixtures() -> tuple[str, ...]:
    """Returns the names of all mixtures, with custom mixtures first and former names last."""
    return (*registry.registered_mixtures(), *_definitions())


def prompts_have_eos(name: str) -> bool:
    """Returns whether inputs of a mixture's prompted tasks end with EOS; loads no templates."""
    return bool(_definitions().get(name, {}).get("inputs_eos"))


def made_for(name: str) -> str:
    """Returns the vocabulary for which a mixture of this module was designed; "" for any other."""
    return _definitions().get(name, {}).get("vocabulary", "")


def list_tasks(templates: Templates | None = None) -> tuple[str, ...]:
    """Returns the names of all tasks in the order custom, text, translation, prompted, ranked."""
    prompted = _prompted(templates or load_templates())
    ranked = (n + SCORE_EVAL for n, (_, task) in prompted.items() if task.template.answer_choices)
    return (*registry.registered_tasks(), *_unprompted(), *prompted, *ranked)


def mixture(name: str, templates: Templates | None = None) -> Mixture:
    """Returns the mixture called `name`, or a mixture that consists of the task called `name`.

    Args:
      name: name of the mixture or task.
      templates: templates of prompted tasks; None to call `load_templates()`.

    Raises UserError if the name is unknown, or if templates are missing or have the wrong version.
    """
    if (rates := registry.registered_mixtures().get(name)) is not None:
        return _registered(name, rates, templates)
    definition = _definitions().get(name)
    if definition is None:
        task: Task | None = registry.registered_tasks().get(name) or _unprompted().get(name)
        task = task or prompted_task(name, templates)
        return Mixture(name, ((task, None),), task.vocabulary)
    tasks: list[Rated] = []
    if definition["groups"]:
        templates = templates or load_templates()
        t0.check_templates(templates, t0.select(*definition["groups"].split()))
        tasks += _defined_prompts(definition, templates)
    if prompts_have_eos(name):
        tasks = [(replace(task, inputs_add_eos=True), rate) for task, rate in tasks]
    if definition["unprompted"] == "opus100":
        tasks += translation.opus100_train()
    elif definition["unprompted"].startswith("oscar"):
        tasks += text.oscar(english=definition["unprompted"] == "oscar")
    elif definition["unprompted"]:
        tasks += text.mc4(definition["unprompted"])
    return Mixture(name, tuple(tasks), cast(VocabularyName, definition["vocabulary"]))


def _registered(
    name: str, rates: Mapping[str, float | None], templates: Templates | None
) -> Mixture:
    """Returns a custom mixture; raises UserError if it contains itself or contains a task twice."""
    tasks: dict[str, Rated] = {}
    vocabularies: list[VocabularyName] = []
    for part, rate in rates.items():
        if part == name:
            raise UserError(f"mixture {name} contains itself")
        try:
            found = mixture(part, templates)
        except UserError as error:
            raise UserError(f"mixture {name}: {error}") from error
        if rate is not None and part in list_mixtures():
            raise UserError(
                f"mixture {name}: {part} is a mixture, and its tasks keep their rates, so its rate "
                f"must be None, not {rate!r}"
            )
        for task, default_rate in found.tasks:
            if task.name in tasks:
                raise UserError(f"mixture {name} contains the task {task.name} twice")
            tasks[task.name] = (task, default_rate if rate is None else rate)
        vocabularies.append(found.vocabulary)
    return Mixture(name, tuple(tasks.values()), vocabularies[0])


def _defined_prompts(definition: Mapping[str, str], templates: Templates) -> Iterator[Rated]:
    """Yields the prompted tasks of a mixture and their rates."""
    left_out = definition["without"].split()
    for group in definition["groups"].split():
        for row in t0.select(group):
            tasks = t0.prompt_tasks(row, templates, group)
            if "original" in definition["prompts"]:
                tasks = tuple(task for task in tasks if task.template.original_task)
            if definition["prompts"] == "paper":
                paper = t0.mt0_prompts()
                tasks = tuple(task for task in tasks if (group, task.template.name) in paper)
            for task in tasks[:1] if "first" in definition["prompts"] else tasks:
                if task.name == _BROKEN or any(part in task.name for part in left_out):
                    continue
                if definition["use"] != "rank":
                    yield task, t0.rate(row, templates) if definition["use"] == "train" else None
                elif task.template.answer_choices is not None:
                    yield task.score_eval(), None


def prompted_task(name: str, templates: Templates | None = None) -> PromptedTask:
    """Returns the prompted task called `name`, which may be the ranked version of a task.

    See `mixture` for the arguments. Raises UserError if there is no such task, or if templates are
    missing or have the wrong version.
    """
    hint = "" if registry.registered_tasks() else " Custom tasks need --module/data.module."
    try:
        templates = templates or load_templates()
    except UserError as error:
        known = [*list_mixtures(), *registry.registered_tasks(), *_unprompted()]
        raise UserError(
            f"there is no mixture {name!r}.{did_you_mean(name, known)}{hint} Whether {name!r} is a "
            f"prompted task cannot be checked, because the prompt templates are missing: {error}"
        ) from error
    found = _prompted(templates, name).get(name.removesuffix(SCORE_EVAL))
    if found is None:
        similar = did_you_mean(name, [*list_mixtures(), *list_tasks(templates)])
        similar = similar or " `python -m mtf data --list` lists all mixtures."
        raise UserError(f"there is no mixture or task {name!r}.{similar}{hint}")
    row, task = found
    if row.groups:
        t0.check_templates(templates, [row])
    return task.score_eval() if name.endswith(SCORE_EVAL) else task


def split_available(
    of: Mixture, split: str, data_dir: DataDir = None, *, download: bool = True
) -> tuple[list[tuple[Task, Rows]], list[tuple[Task, str]]]:
    """Returns the tasks with their records of a split, and the tasks without data with the reasons.

    See `open_split` for `download`. Raises MissingDatasetError if a missing dataset is not
    `skippable_in_evaluation`, and UserError if a task has no such split.
    """
    sources = [(task, task.source_of(split)) for task, _ in of.tasks]
    opened = open_all((source for _, source in sources), data_dir=data_dir, download=download)
    present: list[tuple[Task, Rows]] = []
    absent: list[tuple[Task, str]] = []
    for task, source in sources:
        found = opened[source]
        if not isinstance(found, UserError):
            present.append((task, found))
        elif getattr(found, "skippable_in_evaluation", False):
            absent.append((task, str(found)))
        else:
            raise found
    return present, absent


@functools.cache
def _unprompted() -> dict[str, Task]:
    return {**text.text_tasks(), **translation.translation_tasks(), **dates.dates_tasks()}


def _prompted(
    templates: Templates, name: str | None = None
) -> dict[str, tuple[t0.DatasetRow, PromptedTask]]:
    """Returns a dict that maps the name of each prompted task to (row of its dataset, task).

    If `name` is given, tasks of datasets that neither T0 nor mT0 uses are omitted unless the
    dataset's name is a prefix of `name`.
    """
    known = {
        task.name: (row, task)
        for group in (*t0.ALL_GROUPS, *t0.LANGUAGES)
        for row in t0.select(group)
        if row.key in templates.datasets
        for task in t0.prompt_tasks(row, templates, group)
    }
    others = {
        task.name: (row, task)
        for row in t0.other_datasets(templates)
        if name is None or name.startswith(task_name(row.name, row.subset, ""))
        for task in t0.prompt_tasks(row, templates)
    }
    return others | known
