"""Tasks of plain text, of which an objective makes examples: T5's, mT5's and the Romanian T5's.

Their examples are whole documents, `{"targets": text}`; tokens are cut and corrupted when they are
loaded. Sampling of mC4's languages is that of the mT5 paper (https://arxiv.org/abs/2010.11934,
Table 6): `mc4_languages.csv` has its pages and percentages.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mtf.errors import UserError
from mtf.tasks.objectives import BertStyle, IidDenoising, Objective, PrefixLM, SpanCorruption
from mtf.tasks.task import Task, TaskKind, column
from mtf.text.normalization import Normalization, normalize

_TRAIN_AND_VALIDATION = {"train": "train", "validation": "validation"}


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Documents, and the objective that makes examples of them.

    Attributes:
      objective: how a segment of tokens becomes inputs and targets.
      text_key: the column that holds the text.
      normalization: what is done to the text first; "romanian_diacritics" writes ş and ţ (cedilla)
        as ș and ț (comma below).
      streaming: whether the dataset is meant to be read from the hub as training goes on, as it is
        too large to be downloaded first.
    """

    objective: Objective
    text_key: str = "text"
    normalization: Normalization = None
    streaming: bool = False
    kind: TaskKind = "documents"
    splits: Mapping[str, str] = field(
        default_factory=lambda: dict(_TRAIN_AND_VALIDATION), hash=False
    )
    inputs_add_eos: bool = True

    @property
    def fingerprint(self) -> str:
        """Hash of where the documents come from and how they are normalised.

        The objective is left out: it is applied to tokens, whose cache stays good when it changes.
        """
        return self.hash_of(self.text_key, self.normalization)

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the text of a row as `[{"targets": text}]`, or nothing where it is empty.

        Raises:
          UserError: the row has no such column, or no text in it.
        """
        text = column(row, self.text_key, self)
        if not isinstance(text, str):
            raise UserError(
                f"task {self.name}: row {index} of {split} has no text in column "
                f"{self.text_key!r} but {type(text).__name__}"
            )
        if not text:
            return []
        return [{"targets": normalize(text, self.normalization)}]


class Language(NamedTuple):
    """A row of the mT5 paper's Table 6.

    Attributes:
      code: mC4's; Hebrew is `iw`, and romanised text of six languages ends in `-Latn`.
      name: in English.
      million_pages: size of the language's part of mC4.
      percent: of the training examples that are of this language.
    """

    code: str
    name: str
    million_pages: float
    percent: float

    @property
    def subset(self) -> str:
        """The configuration of the hub's allenai/c4, whose `en` is the English C4, not mC4's."""
        return "en-multi" if self.code == "en" else self.code


@functools.cache
def mc4_languages() -> tuple[Language, ...]:
    """Returns the languages of mC4 with mT5's sampling, the most sampled first.

    They are 101 languages and six of them once more in Latin letters. The percentages are the
    paper's own, proportional to the number of pages to the power of 0.3.
    """
    text = importlib.resources.files("mtf.tasks").joinpath("mc4_languages.csv").read_text("utf-8")
    return tuple(
        Language(row["code"], row["language"], float(row["million_pages"]), float(row["percent"]))
        for row in csv.DictReader(text.splitlines())
    )


def mc4(prefix: str) -> tuple[tuple[Task, int], ...]:
    """Returns the tasks of mC4 with a prefix, each at its percentage in hundredths."""
    tasks = text_tasks()
    return tuple(
        (tasks[_mc4_name(prefix, language)], round(100 * language.percent))
        for language in mc4_languages()
    )


@functools.cache
def text_tasks() -> Mapping[str, TextTask]:
    """Returns all tasks of plain text by name.

    * `c4_v220_span_corruption`, `c4_v220_iid_denoising`, `c4_v220_prefix_lm`: T5's names and
      settings (t5/data/tasks.py); `c4_v220_bert_style` is its third objective, under a name of
      ours. T5 and T5X read TFDS's c4/en, 2.2.0 and later 3.0.1; the hub's allenai/c4 is the latter.
    * `mc4.LANGUAGE`: mT5's pretraining (multilingual_t5/tasks.py).
    * `mc4_prefix_lm.LANGUAGE`: LM adaptation of mT5 as mT0's page describes it; targets end with
      EOS and inputs do not, as in its repository.
    * `rlm_span_corruption_stream`: the Romanian T5's. Its output features were targets only, so
      inputs have no EOS. Text was not normalised.
    """
    objectives: dict[str, Objective] = {
        "span_corruption": SpanCorruption(),
        "iid_denoising": IidDenoising(),
        "prefix_lm": PrefixLM(),
        "bert_style": BertStyle(),
    }
    tasks = [
        TextTask(name=f"c4_v220_{name}", dataset="c4", subset="en", objective=objective)
        for name, objective in objectives.items()
    ]
    tasks.append(
        TextTask(
            name="rlm_span_corruption_stream",
            dataset="dumitrescustefan/rlm",
            subset=None,
            objective=SpanCorruption(),
            streaming=True,
            inputs_add_eos=False,
            vocabulary="romanian",
        )
    )
    for language in mc4_languages():
        tasks.append(_mc4_task("mc4", language, SpanCorruption(), inputs_add_eos=True))
        tasks.append(_mc4_task("mc4_prefix_lm", language, PrefixLM(), inputs_add_eos=False))
    return {task.name: task for task in tasks}


def _mc4_name(prefix: str, language: Language) -> str:
    return f"{prefix}.{language.code.replace('-', '_')}"


def _mc4_task(
    prefix: str, language: Language, objective: Objective, *, inputs_add_eos: bool
) -> TextTask:
    return TextTask(
        name=_mc4_name(prefix, language),
        dataset="mc4",
        subset=language.subset,
        objective=objective,
        streaming=True,
        inputs_add_eos=inputs_add_eos,
        vocabulary="mt5",
    )
