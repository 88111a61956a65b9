"""Translation: OPUS-100 (https://arxiv.org/abs/2004.11867) as mT0's repository mixed it.

There each of the 99 pairs is translated in one direction, that of its name, and drawn with a fixed
probability proportional to its size to the power of 0.3; the prompt names languages by their
codes. `opus100.csv` has the sizes, from which the repository's probabilities follow. Two
differences: it read the languages' codes where the sentences should have been, and pairs that had
run out were repeated before the others were through; here a pair is a task with a rate.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.tasks.task import SAME_SPLITS, Task, column

_EXPONENT = 0.3
# Pairs with too few sentences to have a validation and a test split.
_ONLY_TRAIN = {"an-en", "dz-en", "en-hy", "en-mn", "en-yo"}


@dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Sentences of one language with their translations into another.

    Attributes:
      source, target: codes of the languages, under which the column `translation` has them.
    """

    source: str
    target: str

    @property
    def fingerprint(self) -> str:
        """Hash of the languages and of how the prompt is worded."""
        return self.hash_of(self.source, self.target, self._inputs(""))

    @property
    def metrics(self) -> tuple[str, ...]:
        """BLEU."""
        return ("bleu",)

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the example of a row, or nothing where a sentence is empty.

        Raises:
          UserError: the row has no column `translation`, or not both languages in it.
        """
        sentences = column(row, "translation", self)
        source = column(sentences, self.source, self)
        target = column(sentences, self.target, self)
        if not source or not target:
            return []
        return [{"inputs": self._inputs(source), "targets": target}]

    def _inputs(self, sentence: str) -> str:
        return f"Translate from {self.source} to {self.target}: {sentence}"


@functools.cache
def opus100_sizes() -> Mapping[str, int]:
    """Returns the number of training rows of each pair of languages, such as `en-ro`."""
    text = importlib.resources.files("mtf.tasks").joinpath("opus100.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    return {row["pair"]: int(row["train_size"]) for row in rows}


def opus100_probabilities() -> dict[str, float]:
    """Returns the probability of each pair: its size to the power of 0.3, normalised."""
    weights = {pair: size**_EXPONENT for pair, size in opus100_sizes().items()}
    total = sum(weights.values())
    return {pair: weight / total for pair, weight in weights.items()}


@functools.cache
def translation_tasks() -> Mapping[str, TranslationTask]:
    """Returns `opus100_SOURCE_TARGET_mt` by name, both directions of every pair."""
    tasks = {}
    for pair, size in opus100_sizes().items():
        first, second = pair.split("-")
        for source, target in ((first, second), (second, first)):
            task = TranslationTask(
                name=f"opus100_{source}_{target}_mt",
                dataset="opus100",
                subset=pair,
                splits={"train": "train"} if pair in _ONLY_TRAIN else dict(SAME_SPLITS),
                train_size=size,
                vocabulary="mt5",
                source=source,
                target=target,
            )
            tasks[task.name] = task
    return tasks


def opus100_train() -> tuple[tuple[Task, int], ...]:
    """Returns a task a pair, in the direction of its name, at its rate.

    The rates' sum is, up to rounding, what the repository gives the whole of OPUS-100 beside T0's
    tasks: the sizes weighted by the probabilities, 713,066 examples.
    """
    sizes, probabilities = opus100_sizes(), opus100_probabilities()
    total = sum(int(size * probabilities[pair]) for pair, size in sizes.items())
    tasks = translation_tasks()
    return tuple(
        (tasks[f"opus100_{pair.replace('-', '_')}_mt"], round(total * probability))
        for pair, probability in probabilities.items()
    )
