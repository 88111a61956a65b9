"""Translation tasks of OPUS-100 (https://arxiv.org/abs/2004.11867), as in mT0's repository.

Each of the 99 pairs is translated in the direction of its name, and drawn with a probability
proportional to its size to the power of 0.3. `opus100.csv` has the sizes. Two differences: the
repository read the languages' codes instead of the sentences, and repeated exhausted pairs until
all pairs were finished; here each pair is a task with a rate.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.tasks.task import SAME_SPLITS, Task, column, table

# Pairs that have no validation and test splits, because they are small.
_ONLY_TRAIN = {"an-en", "dz-en", "en-hy", "en-mn", "en-yo"}


@dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Translation from the language code `source` to `target`, keys in column `translation`."""

    source: str
    target: str

    @property
    def fingerprint(self) -> str:
        """Hash of the languages and the words of the prompt."""
        return self.hash_of(self.source, self.target, self._inputs(""))

    @property
    def metrics(self) -> tuple[str, ...]:
        """BLEU."""
        return ("bleu",)

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the example of a record, or nothing if a sentence is empty."""
        sentences = column(row, "translation", self)
        source = column(sentences, self.source, self)
        target = column(sentences, self.target, self)
        return [{"inputs": self._inputs(source), "targets": target}] if source and target else []

    def _inputs(self, sentence: str) -> str:
        return f"Translate from {self.source} to {self.target}: {sentence}"


@functools.cache
def opus100_sizes() -> Mapping[str, int]:
    """Returns the number of training records of each pair of languages, such as `en-ro`."""
    return {row["pair"]: int(row["train_size"]) for row in table("opus100.csv")}


@functools.cache
def translation_tasks() -> Mapping[str, TranslationTask]:
    """Returns `opus100_SOURCE_TARGET_mt` by name, both directions of every pair."""
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
    """Returns a task and a rate for each pair, in the direction of its name.

    As in mT0's repository, the rates add up to the mean size of a pair under the probabilities:
    713,066 examples, up to rounding.
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
