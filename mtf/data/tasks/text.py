"""Defines the plain-text tasks of T5, mT5, mT0 and the Romanian T5, each with an objective.

For each language, `mc4_languages.csv` contains the number of pages and the sampling percentage from
the mT5 paper (https://arxiv.org/abs/2010.11934, Table 6), and `oscar_languages.csv` contains the
number of documents in deduplicated OSCAR 2019 (https://hf.co/datasets/oscar-corpus/oscar).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mtf.base.errors import UserError
from mtf.data.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.data.tasks.task import Task, TaskKind, column, table


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """A task that yields documents, `{"targets": text}`, which an objective turns into examples."""

    kind: TaskKind = "documents"
    splits: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train", "validation": "validation"}, hash=False
    )
    inputs_add_eos: bool = True

    @property
    def fingerprint(self) -> str:
        """A hash of the data source, but not of the objective."""
        return self.hash_of("text", None)  # The values that existing caches contain.

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the text of a record as `[{"targets": text}]`, or [] if the text is empty."""
        text = column(row, "text", self)
        if not isinstance(text, str):
            raise UserError(
                f"task {self.name}: column 'text' of record {index} of {split} has "
                f"type {type(text).__name__}; expected a string"
            )
        return [{"targets": text}] if text else []


@functools.cache
def mc4_subsets() -> Mapping[str, float]:
    """Returns mT5's sampling percentage for each mC4 configuration of `allenai/c4` on the hub.

    There is a configuration for each of 101 languages, and six more for romanized text. Hebrew is
    `iw`. English is `en-multi`, because on the hub `en` denotes C4. The paper's percentages are
    proportional to the number of pages raised to the power of 0.3.
    """
    rows = {row["code"]: float(row["percent"]) for row in table("mc4_languages.csv")}
    return {"en-multi" if code == "en" else code: percent for code, percent in rows.items()}


def mc4(prefix: str) -> list[tuple[Task, int]]:
    """Returns the tasks called `PREFIX.LANGUAGE` and their rates in hundredths of a percent."""
    tasks = [task for name, task in text_tasks().items() if name.startswith(f"{prefix}.")]
    rates = [round(100 * percent) for percent in mc4_subsets().values()]
    return list(zip(tasks, rates, strict=True))


def oscar(*, english: bool) -> list[tuple[Task, float]]:
    """Returns the OSCAR tasks and rates (n**0.3 for n documents), with English if `english`."""
    return [
        (text_tasks()[f"oscar_{code}_lm_objective"], size**0.3)
        for code, size in _oscar_sizes().items()
        if english or code != "en"
    ]


@functools.cache
def _oscar_sizes() -> Mapping[str, int]:
    return {row["code"]: int(row["train_size"]) for row in table("oscar_languages.csv")}


@functools.cache
def text_tasks() -> Mapping[str, TextTask]:
    """Returns all plain-text tasks by name.

    * `c4_v220_span_corruption`, `c4_v220_iid_denoising` and `c4_v220_prefix_lm` have the names and
      settings of T5 (t5/data/tasks.py); T5 does not define `c4_v220_bert_style`. T5 and T5X read
      c4/en from TFDS, initially version 2.2.0 and later 3.0.1, which is also the hub's version.
    * `rlm_span_corruption_stream` is for pretraining the Romanian T5, without normalization. Inputs
      do not end with EOS, because the original task had no output feature other than targets.
    * `mc4.LANGUAGE` is for pretraining mT5 (multilingual_t5/tasks.py).
    * `mc4_prefix_lm.LANGUAGE` is for the LM adaptation of mT5, as described for mT0. As in mT0's
      repository, targets end with EOS, but inputs do not.
    * `oscar_LANGUAGE_lm_objective` is for the LM adaptation in mT0's repository, which adds EOS to
      documents before concatenating them, so only some targets end with EOS. In mtf, all do.
    """
    tasks = [
        TextTask(name=f"c4_v220_{name}", dataset="c4", subset="en", objective=objective)
        for name, objective in (
            ("span_corruption", SpanCorruption()),
            ("iid_denoising", IidDenoising()),
            ("prefix_lm", PrefixLM()),
            ("bert_style", BertStyle()),
        )
    ]
    tasks.append(
        TextTask(
            name="rlm_span_corruption_stream",
            dataset="dumitrescustefan/rlm",
            subset=None,
            objective=SpanCorruption(),
            inputs_add_eos=False,
            vocabulary="romanian",
        )
    )
    tasks += [
        TextTask(
            name=f"{prefix}.{subset.removesuffix('-multi').replace('-', '_')}",
            dataset="mc4",
            subset=subset,
            objective=objective,
            inputs_add_eos=prefix == "mc4",
            vocabulary="mt5",
        )
        for subset in mc4_subsets()
        for prefix, objective in (("mc4", SpanCorruption()), ("mc4_prefix_lm", PrefixLM()))
    ]
    tasks += [
        TextTask(
            name=f"oscar_{code}_lm_objective",
            dataset="oscar",
            subset=f"unshuffled_deduplicated_{code}",
            objective=PrefixLM(merge_documents=128),
            splits={"train": "train"},
            inputs_add_eos=False,
            vocabulary="mt5",
        )
        for code in _oscar_sizes()
    ]
    return {task.name: task for task in tasks}
