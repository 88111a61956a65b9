"""mT0's mixtures (https://github.com/lintangsutawika/multilingual-t0).

Training mixtures are T0's tasks in other groups: what T0 holds out is trained on, and English tasks
whose translations are evaluated (XTREME's) come only with `mt0p_train_mixture`.

Evaluation is on XNLI and XCOPA, whose rows are in many languages: promptsource's English templates
for XNLI and COPA are applied to them. The repository has one prompt of its own for each instead,
which is only generated; here every template is, and is ranked too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mtf.tasks import t0
from mtf.tasks.prompted import PromptedTask, task_name
from mtf.tasks.prompts.templates import Templates
from mtf.tasks.t0 import DatasetRow, RatedPrompt

# fmt: off
XNLI_LANGUAGES = (
    "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh",
)
XCOPA_LANGUAGES = ("et", "ht", "id", "it", "qu", "sw", "ta", "th", "tr", "vi", "zh")
# fmt: on

# GPT-3's evaluation sets that mT0's repository has in other groups than `gpt_train`.
_NOT_IN_GPT = {"squad_v2", "openbookqa/main", "race/high", "race/middle"}
_HELD_OUT_BY_T0 = {"winogrande/winogrande_xl", "super_glue/cb", "super_glue/rte", "anli"}
_XTREME = {
    "super_glue/wsc.fixed",
    "super_glue/copa",
    "multi_nli",
    "paws/labeled_final",
    "squad_v2",
}


def gpt_rows() -> tuple[DatasetRow, ...]:
    """Returns the datasets of `gpt_train`."""
    return tuple(row for row in t0.select(train={"GPT"}) if row.key not in _NOT_IN_GPT)


def train_rows() -> tuple[DatasetRow, ...]:
    """Returns the datasets of `mt0_train_mixture`."""
    rows = t0.select(train={"BASE", "GPT", "SGLUE"}, keys=_HELD_OUT_BY_T0)
    return tuple(row for row in rows if row.key not in _XTREME)


def xtreme_rows() -> tuple[DatasetRow, ...]:
    """Returns the datasets that `mt0p_train_mixture` adds."""
    return t0.select(keys=_XTREME)


def train(rows: Iterable[DatasetRow], templates: Templates) -> tuple[RatedPrompt, ...]:
    """Returns all prompts at T0's rates, but ANLI's at the cap, as it has no split called train."""
    rows = tuple(rows)
    return tuple(
        (task, t0.MAX_EXAMPLES_PER_DATASET if task.dataset == "anli" else rate)
        for task, rate in t0.train(rows, templates)
    )


def xnli_rows() -> tuple[DatasetRow, ...]:
    """Returns the dataset whose templates XNLI is evaluated with."""
    return t0.select(keys={"xnli/en"})


def xcopa_rows() -> tuple[DatasetRow, ...]:
    """Returns the dataset whose templates XCOPA is evaluated with."""
    return t0.select(keys={"super_glue/copa"})


def xnli_tasks(row: DatasetRow, templates: Templates) -> tuple[PromptedTask, ...]:
    """Returns a task for each of XNLI's 15 languages and each template of the row."""
    return _in_languages("xnli", XNLI_LANGUAGES, row, templates)


def xcopa_tasks(row: DatasetRow, templates: Templates) -> tuple[PromptedTask, ...]:
    """Returns a task for each of XCOPA's 11 languages and each template of the row."""
    return _in_languages("xcopa", XCOPA_LANGUAGES, row, templates)


def _in_languages(
    dataset: str, languages: Iterable[str], row: DatasetRow, templates: Templates
) -> tuple[PromptedTask, ...]:
    tasks = t0.prompt_tasks(row, templates)
    return tuple(
        replace(
            task,
            name=task_name(dataset, language, task.template.name),
            dataset=dataset,
            subset=language,
            splits={"validation": "validation", "test": "test"},
            train_size=None,
            vocabulary="mt5",
        )
        for language in languages
        for task in tasks
    )
