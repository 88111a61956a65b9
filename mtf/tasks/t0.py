"""T0's datasets, tasks and mixtures (https://arxiv.org/abs/2110.08207).

The datasets are rows of `t0_datasets.csv`: groups, sizes, and hashes of the templates that
promptsource has for them, by which another version of the templates is told.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from mtf.errors import UserError
from mtf.tasks.prompted import PromptedTask, task_name
from mtf.tasks.prompts.templates import Template, Templates, fingerprint
from mtf.tasks.task import SAME_SPLITS, Task

MAX_EXAMPLES_PER_DATASET = 500_000
TEMPLATE_VERSIONS = ("0.2.3", "0.1.0")
ANLI_ROUNDS = ("r1", "r2", "r3")

# A task with its rate; None: as many as it has examples, at most MAX_EXAMPLES_PER_DATASET.
Rated = tuple[Task, int | None]
RatedPrompt = tuple[PromptedTask, int | None]

# Inputs that are too long, and broken caches.
BLACKLIST = frozenset(
    [
        f"hotpot_qa_{subset}_Generate_{what}"
        for subset in ("distractor", "fullwiki")
        for what in (
            "Answer",
            "Answer_and_Explanations",
            "Explanations",
            "Question",
            "Title_1",
            "Title_2",
        )
    ]
    + [f"tab_fact_tab_fact_tab_fact_{number}" for number in range(1, 8)]
    + [
        "wiki_hop_masked_Choose_Best_Object_Candidate",
        "wiki_hop_masked_Indirect_Question_about_Birthplace_Citizenship_Place_of_Death",
        "narrativeqa_Template_05",
        "ecthr_cases_alleged_violation_prediction_silver_rationales",
        "gigaword_summarize_",
    ]
)
# Training tasks on which checkpoints are not compared: names that contain one of these…
SKIPPED_IN_TRAIN_SCORE_EVAL = (
    "paws_labeled_final",
    "adversarial_qa_dbidaf",
    "adversarial_qa_dbert",
    "duorc_ParaphraseRC",
    "dream",
    "amazon_polarity",
    "app_reviews",
    "imdb",
    "wiki_bio",
    "gigaword",
    "multi_news",
    "samsum",
    "dbpedia_14",
    "trec",
    # … and five tasks that could not be cached.
    "wiki_hop_original_choose_best_object",
)


@dataclass(frozen=True)
class DatasetRow:
    """A row of the table.

    Attributes:
      name, subset: the dataset and its configuration, as they were in 2021.
      train_group: BASE (T0), GPT (added by T0+), SGLUE (added by T0++), MT0 (not T0's), or empty.
      eval_group: BASE, BIAS_FAIRNESS, MT0 (not T0's), or empty.
      train_size: rows of its training split; None where it has none or no task depends on it.
      fingerprints: of its templates in each of TEMPLATE_VERSIONS; empty where it has none there,
        or others than its mixtures are defined with.
    """

    name: str
    subset: str | None
    train_group: str
    eval_group: str
    train_size: int | None
    fingerprints: tuple[str, ...]

    @property
    def key(self) -> str:
        """`DATASET` or `DATASET/SUBSET`."""
        return f"{self.name}/{self.subset}" if self.subset else self.name


@functools.cache
def datasets() -> tuple[DatasetRow, ...]:
    """Returns the table of datasets."""
    text = importlib.resources.files("mtf.tasks").joinpath("t0_datasets.csv").read_text()
    return tuple(
        DatasetRow(
            name=row["dataset"],
            subset=row["subset"] or None,
            train_group=row["train_group"],
            eval_group=row["eval_group"],
            train_size=int(row["train_size"]) if row["train_size"] else None,
            fingerprints=tuple(row[f"templates_{version}"] for version in TEMPLATE_VERSIONS),
        )
        for row in csv.DictReader(text.splitlines())
    )


def select(
    train: Collection[str] = (), evaluation: Collection[str] = (), keys: Collection[str] = ()
) -> tuple[DatasetRow, ...]:
    """Returns the datasets of these groups or keys that have templates, in the table's order."""
    return tuple(
        row
        for row in datasets()
        if any(row.fingerprints)
        and (row.train_group in train or row.eval_group in evaluation or row.key in keys)
    )


def check_templates(templates: Templates, rows: Iterable[DatasetRow]) -> None:
    """Checks that the templates of these datasets are those of one of TEMPLATE_VERSIONS.

    Raises:
      UserError: they are not; names the datasets that differ from the nearest version.
    """
    differing = {
        version: [
            row.key
            for row in rows
            if row.key not in templates.datasets
            or fingerprint(templates.get(row.name, row.subset)) != row.fingerprints[number]
        ]
        for number, version in enumerate(TEMPLATE_VERSIONS)
    }
    version, keys = min(differing.items(), key=lambda item: len(item[1]))
    if keys:
        shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        raise UserError(
            f"{templates.source}: are of another version than promptsource "
            f"{' or '.join(TEMPLATE_VERSIONS)}, with which this mixture is defined: those of "
            f"{shown} differ from {version}"
        )


def prompt_tasks(
    row: DatasetRow, templates: Templates, keep: Callable[[Template], bool] = lambda _: True
) -> tuple[PromptedTask, ...]:
    """Returns a task for each template of a dataset that is kept, in the order of their names.

    ANLI has one for each of its rounds, which are parts of its splits.
    """
    chosen = sorted(filter(keep, templates.get(row.name, row.subset)), key=lambda t: t.name)
    rounds = ANLI_ROUNDS if row.key == "anli" else (None,)
    return tuple(
        PromptedTask(
            name=task_name(row.name, row.subset, template.name) + (f"_{part}" if part else ""),
            dataset=row.name,
            subset=row.subset,
            template=template,
            splits=_anli_splits(part) if part else dict(SAME_SPLITS),
            train_size=row.train_size,
        )
        for part in rounds
        for template in chosen
    )


def rate(row: DatasetRow, templates: Templates) -> int:
    """Returns the rate of each task of a dataset: its size, or its share of the cap if larger."""
    size = row.train_size or 0
    if size <= MAX_EXAMPLES_PER_DATASET:
        return size
    return MAX_EXAMPLES_PER_DATASET // len(templates.get(row.name, row.subset))


def train(rows: Iterable[DatasetRow], templates: Templates) -> tuple[RatedPrompt, ...]:
    """Returns all prompts of the datasets, at their rates."""
    return tuple(
        (task, rate(row, templates))
        for row in rows
        for task in prompt_tasks(row, templates)
        if task.name not in BLACKLIST
    )


def train_original_task(
    rows: Iterable[DatasetRow], templates: Templates, num_prompts: int | None = None
) -> tuple[RatedPrompt, ...]:
    """Returns the prompts that ask for the dataset's own task, the first `num_prompts` of each."""
    return tuple(
        (task, rate(row, templates))
        for row in rows
        for task in prompt_tasks(row, templates, _is_original_task)[:num_prompts]
        if task.name not in BLACKLIST
    )


def score_eval(
    rows: Iterable[DatasetRow], templates: Templates, original_task_only: bool = True
) -> tuple[RatedPrompt, ...]:
    """Returns the ranked twins of the prompts that have answer choices, without rates."""
    return ranked(
        task
        for row in rows
        for task in prompt_tasks(row, templates)
        if task.template.metadata.original_task or not original_task_only
    )


def ranked(tasks: Iterable[PromptedTask]) -> tuple[RatedPrompt, ...]:
    """Returns the ranked twins of the tasks that have answer choices, without rates."""
    return tuple(
        (task.score_eval(), None)
        for task in tasks
        if task.template.answer_choices is not None and task.name not in BLACKLIST
    )


def train_score_eval(rows: Iterable[DatasetRow], templates: Templates) -> tuple[RatedPrompt, ...]:
    """Returns the ranked twins of training tasks on which T0's checkpoints were compared."""
    return tuple(
        (task, task_rate)
        for task, task_rate in score_eval(rows, templates)
        if not any(part in task.name for part in SKIPPED_IN_TRAIN_SCORE_EVAL)
    )


def _is_original_task(template: Template) -> bool:
    return template.metadata.original_task


def _anli_splits(part: str) -> dict[str, str]:
    return {"train": f"train_{part}", "validation": f"dev_{part}", "test": f"test_{part}"}
