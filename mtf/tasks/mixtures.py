"""Finds mixtures and tasks by name: the user's, T0's, mT0's, mT5's, T5's and the Romanian T5's."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import DataDir, MissingDatasetError, open_split
from mtf.tasks import registry, t0, text, translation
from mtf.tasks.prompted import SCORE_EVAL, PromptedTask, task_name
from mtf.tasks.prompts.templates import Templates, load_templates
from mtf.tasks.task import Task, VocabularyName, table

# In SeqIO, the names of T0's tasks in mixtures with mT5's vocabulary begin with this.
MT5_PREFIX = "mt5_"
# A task and its rate; None: the number of its examples, at most t0.MAX_EXAMPLES_PER_DATASET.
Rated = tuple[Task, float | None]

# T0 left this task out because it could not be cached. Its list of such tasks has 23 more, whose
# datasets are in no mixture here.
_BROKEN = "gigaword_summarize_"


@dataclass(frozen=True)
class Mixture:
    """Tasks that are mixed in training, or evaluated together.

    Attributes:
      name: the mixture's name, or an older name of it.
      tasks: tasks and rates. Examples are drawn in proportion to the rates; None is the number of
        the task's examples, at most 500,000.
      vocabulary: the vocabulary that the mixture was made for.
    """

    name: str
    tasks: tuple[Rated, ...]
    vocabulary: VocabularyName = "t5"

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines the text of the tasks' examples; runs store it."""
        fingerprints = sorted({task.fingerprint for task, _ in self.tasks})
        return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


@functools.cache
def _definitions() -> dict[str, dict[str, str]]:
    """Returns the rows of `mixtures.csv` by name, then by their older names.

    Columns: groups (of datasets, see `t0.DatasetRow`), use (train at T0's rates, rank or generate),
    prompts (all of a dataset, those for its original task, the first of these, or those of mT0's
    paper), without (parts of the names of excluded tasks), unprompted (additional translation or
    text tasks), inputs_eos (whether inputs of prompts end with EOS, as in mT0's repository until
    2021-12-15).
    """
    rows = table("mixtures.csv")
    older = {name: row for row in rows for name in row["other_names"].split()}
    return {row["name"]: row for row in rows} | older


def list_mixtures() -> tuple[str, ...]:
    """Returns the names of all mixtures, the user's first and older names last."""
    return (*registry.registered_mixtures(), *_definitions())


def prompts_have_eos(name: str) -> bool:
    """Returns whether the inputs of a mixture's prompted tasks end with EOS; needs no templates."""
    return bool(_definitions().get(name, {}).get("inputs_eos"))


def list_tasks(templates: Templates | None = None) -> tuple[str, ...]:
    """Returns the names of all tasks: the user's, text, translation, prompted, ranked versions."""
    prompted = _prompted(templates or load_templates())
    ranked = (n + SCORE_EVAL for n, (_, task) in prompted.items() if task.template.answer_choices)
    return (*registry.registered_tasks(), *_unprompted(), *prompted, *ranked)


def mixture(
    name: str, templates: Templates | None = None, *, check_version: bool = True
) -> Mixture:
    """Returns one of `list_mixtures()`, or one of `list_tasks()` as a mixture of one task.

    Args:
      name: name of the mixture or task.
      templates: templates of prompted tasks; None: those that `load_templates` finds.
      check_version: whether to refuse templates of a version that would change the mixture.

    Raises UserError if the name is unknown, or its templates are missing or of another version.
    """
    if (rates := registry.registered_mixtures().get(name)) is not None:
        return _registered(name, rates, templates, check_version)
    definition = _definitions().get(name)
    if definition is None:
        task: Task | None = registry.registered_tasks().get(name) or _unprompted().get(name)
        task = task or _checked_task(name, templates, check_version)
        return Mixture(name, ((task, None),), task.vocabulary)
    tasks: list[Rated] = []
    if definition["groups"]:
        templates = templates or load_templates()
        if check_version:
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
    name: str, rates: Mapping[str, float | None], templates: Templates | None, check_version: bool
) -> Mixture:
    """Returns a mixture of the user's; raises UserError if it contains a task twice or itself."""
    tasks: dict[str, Rated] = {}
    vocabularies: list[VocabularyName] = []
    for part, rate in rates.items():
        if part == name:
            raise UserError(f"mixture {name} contains itself")
        try:
            found = mixture(part, templates, check_version=check_version)
        except UserError as error:
            raise UserError(f"mixture {name}: {error}") from error
        if rate is not None and part in list_mixtures():
            raise UserError(
                f"mixture {name}: {part} is a mixture, whose tasks keep their rates; its rate must "
                f"be None, not {rate!r}"
            )
        for task, own_rate in found.tasks:
            if task.name in tasks:
                raise UserError(f"mixture {name}: it has the task {task.name} twice")
            tasks[task.name] = (task, own_rate if rate is None else rate)
        vocabularies.append(found.vocabulary)
    return Mixture(name, tuple(tasks.values()), vocabularies[0])


def _defined_prompts(definition: Mapping[str, str], templates: Templates) -> Iterator[Rated]:
    """Yields the prompted tasks of a mixture with their rates."""
    left_out = definition["without"].split()
    for group in definition["groups"].split():
        for row in t0.select(group):
            tasks = t0.prompt_tasks(row, templates, group)
            if "original" in definition["prompts"]:
                tasks = tuple(task for task in tasks if task.template.original_task)
            if definition["prompts"] == "paper":
                names = t0.MT0_EVAL_TEMPLATES[group]
                tasks = tuple(task for task in tasks if task.template.name in names)
            for task in tasks[:1] if "first" in definition["prompts"] else tasks:
                if task.name == _BROKEN or any(part in task.name for part in left_out):
                    continue
                if definition["use"] != "rank":
                    yield task, t0.rate(row, templates) if definition["use"] == "train" else None
                elif task.template.answer_choices is not None:
                    yield task.score_eval(), None


def prompted_task(name: str, templates: Templates | None = None) -> PromptedTask:
    """Returns a prompted task, or its ranked version, by name; raises UserError if unknown."""
    templates = templates or load_templates()
    ranked = name.endswith(SCORE_EVAL)
    _, task = _prompted(templates, name).get(name.removesuffix(SCORE_EVAL), (None, None))
    if task is None or (ranked and task.template.answer_choices is None):
        known = [known for known in list_tasks(templates) if known.endswith(SCORE_EVAL) == ranked]
        raise UserError(f"there is no task {name!r}.{did_you_mean(name, known)}")
    return task.score_eval() if ranked else task


def split_available(
    of: Mixture, split: str, data_dir: DataDir = None, *, download: bool = True
) -> tuple[tuple[Task, ...], tuple[tuple[Task, str], ...]]:
    """Returns the tasks of a mixture that have data for a split, and those without, with reasons.

    `download` is that of `open_split`. Raises MissingDatasetError if a dataset is missing that is
    not `skippable_in_evaluation`, and UserError if a task does not have this split.
    """

    @functools.cache
    def why_absent(dataset: str, subset: str | None, source_split: str) -> str | None:
        try:
            open_split(dataset, subset, source_split, data_dir=data_dir, download=download)
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


def _module_hint() -> str:
    if registry.registered_tasks():
        return ""
    return " Your own tasks need --module/data.module."


def _checked_task(name: str, templates: Templates | None, check_version: bool) -> PromptedTask:
    try:
        templates = templates or load_templates()
    except UserError as error:
        known = [*list_mixtures(), *registry.registered_tasks(), *_unprompted()]
        raise UserError(
            f"there is no mixture {name!r}.{did_you_mean(name, known)}{_module_hint()} Whether it "
            f"is a prompted task is not known without the templates: {error}"
        ) from error
    found = _prompted(templates, name)
    if name.removesuffix(SCORE_EVAL) not in found:
        hint = did_you_mean(name, [*list_mixtures(), *list_tasks(templates)])
        hint = hint or " `python -m mtf.data --list` lists all mixtures."
        raise UserError(f"there is no mixture or task {name!r}.{hint}{_module_hint()}")
    if check_version:
        row, _ = found[name.removesuffix(SCORE_EVAL)]
        if row.groups:
            t0.check_templates(templates, [row])
    return prompted_task(name, templates)


@functools.cache
def _unprompted() -> dict[str, Task]:
    return {**text.text_tasks(), **translation.translation_tasks()}


def _prompted(
    templates: Templates, name: str | None = None
) -> dict[str, tuple[t0.DatasetRow, PromptedTask]]:
    """Returns prompted tasks by name, each with the dataset that its templates are for.

    With `name`, leaves out datasets outside T0's and mT0's whose tasks do not have this name.
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
