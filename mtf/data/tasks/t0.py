"""Defines the datasets, prompted tasks and rates of T0 and mT0.

The sources are https://arxiv.org/abs/2110.08207 (T0) and
https://github.com/lintangsutawika/multilingual-t0 (mT0). For each dataset, `t0_datasets.csv`
contains its groups, its size and hashes of its templates.

For mT0's evaluation, promptsource's English templates for XNLI, COPA, Story Cloze and Winogrande
are applied to each language of XNLI, XCOPA, XStoryCloze and XWinograd. mT0's first repository
instead defines one prompt for XNLI and one for XCOPA. `mt0_prompts.csv` contains the templates that
were used for the evaluation in https://arxiv.org/abs/2211.01786 (bigscience-workshop/bigscience,
evaluation/results/tr13/tzeroeval/evaluate_mt0.slurm).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from mtf.base.errors import UserError
from mtf.data.tasks.prompted import PromptedTask, task_name
from mtf.data.tasks.prompts.templates import Templates, fingerprint
from mtf.data.tasks.task import SAME_SPLITS, table

MAX_EXAMPLES_PER_DATASET = 500_000
TEMPLATE_VERSIONS = ("0.2.3", "0.1.0")
ANLI_ROUNDS = ("r1", "r2", "r3")
# In promptsource, a name that starts with one of these is `OWNER/NAME`, not `DATASET/SUBSET`.
_OWNERS = ("Zaid", "craffel")
ALL_GROUPS = ("BASE", "GPT", "SGLUE", "EVAL", "BIAS_FAIRNESS", "XTREME")
LANGUAGES = {
    "XNLI": "ar bg de el en es fr hi ru sw th tr ur vi zh",
    "XCOPA": "et ht id it qu sw ta th tr vi zh",
    "XSTORY_CLOZE": "ar es eu hi id my ru sw te zh",
    "XWINOGRAD": "en fr jp pt ru zh",
}
# XWinograd has only a test split, which mT0's authors used for evaluation.
_SPLITS = {"XWINOGRAD": {"validation": "test", "test": "test"}}


@dataclass(frozen=True)
class DatasetRow:
    """A row of `t0_datasets.csv`.

    Attributes:
      name, subset: names that the dataset and its configuration had in 2021.
      groups: groups that contain the dataset. T0 is trained on BASE; T0+ adds GPT, and T0++ adds
        GPT and SGLUE. T0 is evaluated on EVAL and BIAS_FAIRNESS. mT0 is trained on MT0, MT0_GPT and
        XTREME; the tasks of XTREME are evaluated in translation. For XNLI, XCOPA, XSTORY_CLOZE and
        XWINOGRAD, the dataset's templates are applied to the multilingual dataset of that name.
      train_size: number of records in the split "train"; None if the split is missing or unused.
      fingerprints: for each of TEMPLATE_VERSIONS, a hash of the dataset's templates, or "" if the
        version lacks templates that the mixtures need.
    """

    name: str
    subset: str | None
    groups: tuple[str, ...]
    train_size: int | None
    fingerprints: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name as `DATASET` or `DATASET/SUBSET`."""
        return f"{self.name}/{self.subset}" if self.subset else self.name


@functools.cache
def datasets() -> tuple[DatasetRow, ...]:
    """Returns the rows of `t0_datasets.csv`."""
    return tuple(
        DatasetRow(
            name=row["dataset"],
            subset=row["subset"] or None,
            groups=tuple(row["groups"].split()),
            train_size=int(row["train_size"]) if row["train_size"] else None,
            fingerprints=tuple(row[f"templates_{version}"] for version in TEMPLATE_VERSIONS),
        )
        for row in table("t0_datasets.csv")
    )


@functools.cache
def mt0_prompts() -> tuple[tuple[str, str], ...]:
    """Returns the rows of `mt0_prompts.csv`: (group of datasets, name of a template)."""
    return tuple((row["group"], row["template"]) for row in table("mt0_prompts.csv"))


def other_datasets(templates: Templates) -> list[DatasetRow]:
    """Returns the datasets that have templates but are not in `t0_datasets.csv`."""
    known = {row.key for row in datasets()}
    rows = []
    for key in templates.datasets:
        if key not in known:
            owner, _, rest = key.partition("/")
            name, _, subset = (key, "", "") if owner in _OWNERS else (owner, "/", rest)
            rows.append(DatasetRow(name, subset or None, (), None, ()))
    return rows


def select(*groups: str) -> tuple[DatasetRow, ...]:
    """Returns the datasets in the given groups, in the order of the groups."""
    return tuple(row for group in groups for row in datasets() if group in row.groups)


def check_templates(templates: Templates, rows: Iterable[DatasetRow]) -> None:
    """Raises UserError unless the datasets' templates match those of one of TEMPLATE_VERSIONS."""
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
            f"{templates.source}: this mixture is defined with the templates of promptsource "
            f"{' or '.join(TEMPLATE_VERSIONS)}, but the templates of {shown} differ from "
            f"those of {version}. Use the templates of one of these versions"
        )


def prompt_tasks(
    row: DatasetRow, templates: Templates, group: str = ""
) -> tuple[PromptedTask, ...]:
    """Returns a task for each template of a dataset, sorted by the name of the template.

    For ANLI, repeats these tasks for each round. If `group` is in LANGUAGES, applies the templates
    to the multilingual dataset of that name, and repeats the tasks for each language.
    """
    chosen = sorted(templates.get(row.name, row.subset), key=lambda template: template.name)
    if group in LANGUAGES:
        return tuple(
            PromptedTask(
                name=task_name(group.lower(), language, template.name),
                dataset=group.lower(),
                subset=language,
                template=template,
                splits=_SPLITS.get(group, {"validation": "validation", "test": "test"}),
                vocabulary="mt5",
            )
            for language in LANGUAGES[group].split()
            for template in chosen
        )
    return tuple(
        PromptedTask(
            name=task_name(row.name, row.subset, template.name) + part,
            dataset=row.name,
            subset=row.subset,
            template=template,
            splits={
                split: ("dev" if part and split == "validation" else split) + part
                for split in SAME_SPLITS
            },
        )
        for part in ([f"_{name}" for name in ANLI_ROUNDS] if row.key == "anli" else [""])
        for template in chosen
    )


def rate(row: DatasetRow, templates: Templates) -> int:
    """Returns the rate of each task of a dataset.

    The rate is the number of training records if this is at most MAX_EXAMPLES_PER_DATASET, and
    otherwise this maximum divided by the number of templates. If the number of records is unknown,
    the rate is the maximum, as in mT0 for ANLI, which has no split called "train".
    """
    if row.train_size is None or row.train_size <= MAX_EXAMPLES_PER_DATASET:
        return row.train_size or MAX_EXAMPLES_PER_DATASET
    return MAX_EXAMPLES_PER_DATASET // len(templates.get(row.name, row.subset))
