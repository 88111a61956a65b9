"""Defines mT0's translation tasks, which use OPUS-100 (https://arxiv.org/abs/2004.11867).

Each of the 99 language pairs is translated in the direction of its name and drawn with a
probability proportional to its size (see `opus100.csv`) raised to the power of 0.3. In mtf, each
pair is a task with a rate. mT0's repository differs in two ways: it reads the language codes
instead of the sentences, and it repeats exhausted pairs until all pairs are exhausted.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.data.tasks.task import SAME_SPLITS, Task, column, table

# Small language pairs, which have neither a validation split nor a test split.
_ONLY_TRAIN = {"an-en", "dz-en", "en-hy", "en-mn", "en-yo"}


@dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """A task that translates sentences from one language to another.

    Attributes:
      source, target: language codes, which are also the keys of the dicts in column `translation`.
    """

    source: str
    target: str

    @property
    def fingerprint(self) -> str:
        """A hash of the data source, the languages and the wording of the prompt."""
        return self.hash_of(self.source, self.target, self._inputs(""))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The name of the only metric, BLEU."""
        return ("bleu",)

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns a list with the example of a record, or [] if either sentence is empty."""
        sentences = column(row, "translation", self)
        source = column(sentences, self.source, self)
        target = column(sentences, self.target, self)
        return [{"inputs": self._inputs(source), "targets": target}] if source and target else []

    def _inputs(self, sentence: str) -> str:
        return f"Translate from {self.source} to {self.target}: {sentence}"


@functools.cache
def opus100_sizes() -> Mapping[str, int]:
    """Returns a dict mapping language pairs (e.g. `en-ro`) to their numbers of training records."""
    return {row["pair"]: int(row["train_size"]) for row in table("opus100.csv")}


@functools.cache
def translation_tasks() -> Mapping[str, TranslationTask]:
    """Returns the tasks for both directions of each pair by name (`opus100_SOURCE_TARGET_mt`)."""
    tasks = [
        TranslationTask(
            name=f"opus100_{source}_{target}_mt",
            dataset="opus100",
            subset=pair,
            splits={"train": "train"} if pair in _ONLY_TRAIN else dict(SAME_SPLITS),
            vocabulary="mt5",
            source=source,
            target=target,
        )
        for pair in opus100_sizes()
        for source, target in (pair.split("-"), reversed(pair.split("-")))
    ]
    return {task.name: task for task in tasks}


def opus100_train() -> list[tuple[Task, int]]:
    """Returns, for each language pair, the task in the direction of the pair's name and its rate.

    As in mT0's repository, the sum of the rates before rounding is 713,066, which is the mean of
    the pairs' sizes weighted by their probabilities.
    """
    sizes = opus100_sizes()
    weights = {pair: size**0.3 for pair, size in sizes.items()}
    sum_of_weights = sum(weights.values())
    probabilities = {pair: weight / sum_of_weights for pair, weight in weights.items()}
    total = sum(int(size * probabilities[pair]) for pair, size in sizes.items())
    tasks = translation_tasks()
    return [
        (tasks[f"opus100_{pair.replace('-', '_')}_mt"], round(total * probability))
        for pair, probability in probabilities.items()
    ]
