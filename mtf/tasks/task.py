"""What every task has: a name, a dataset, its splits, and how a row becomes examples.

Prompted tasks are in `prompted.py`, documents for self-supervised objectives in `text.py`,
translation in `translation.py`; `mixtures.py` finds all of them by name.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mtf.errors import UserError, did_you_mean, did_you_mean_split

TaskKind = Literal["generate", "rank", "documents"]
VocabularyName = Literal["t5", "mt5", "romanian"]

SAME_SPLITS = {"train": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A dataset, and how its rows become text.

    Attributes:
      name: unique.
      dataset: name of the dataset, as it was when the task was defined.
      subset: its configuration, None where it has none.
      kind: "generate": an example a row. "rank": an example a row and answer choice, whose
        likelihoods are compared. "documents": a text a row, which an objective makes examples of.
      splits: the task's splits, each with the name that it has in the dataset, which need not have
        all of them.
      train_size: rows of the training split; None where it has none or it is not known.
      inputs_add_eos, targets_add_eos: whether tokens end with end of sequence; T0's do not and do.
      vocabulary: whose the task is made for, where it is used by itself; that of a mixture counts
        where it is another.
    """

    name: str
    dataset: str
    subset: str | None
    kind: TaskKind = "generate"
    splits: Mapping[str, str] = field(default_factory=lambda: dict(SAME_SPLITS), hash=False)
    train_size: int | None = None
    inputs_add_eos: bool = False
    targets_add_eos: bool = True
    vocabulary: VocabularyName = "t5"

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Hash of what decides the text of the examples, and whether its tokens end with EOS."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, T5's."""
        return ()

    @abc.abstractmethod
    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the examples of row `index` of a split: none where the row is left out.

        Raises:
          UserError: the row is not one of the task's dataset.
        """

    def examples(
        self, rows: Iterable[Mapping[str, Any]], split: str, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yields the examples of the rows of a split, which must be given from its first."""
        for index, row in enumerate(rows):
            yield from self.row_examples(row, index, split, seed)

    def postprocess(self, text: str) -> str | int:
        """Returns what metrics compare: a class index, or the stripped text."""
        return text.strip()

    def source_split(self, split: str) -> str:
        """Returns the name that a split of this task has in the dataset."""
        if split not in self.splits:
            raise UserError(
                f"task {self.name} has no split {split!r}; it has {', '.join(self.splits)}."
                f"{did_you_mean_split(split, self.splits)}"
            )
        return self.splits[split]

    def hash_of(self, *fields: object) -> str:
        """Returns a hash of the dataset, its splits, EOS and `fields`, which must be JSON."""
        common = [
            type(self).__name__,
            self.dataset,
            self.subset,
            sorted(self.splits.items()),
            self.inputs_add_eos,
            self.targets_add_eos,
        ]
        return hashlib.sha256(json.dumps([common, *fields]).encode()).hexdigest()[:16]


def column(row: Mapping[str, Any], name: str, task: Task) -> Any:
    """Returns a column of a row.

    Raises:
      UserError: the row has no such column; names those that it has.
    """
    if name not in row:
        raise UserError(
            f"task {task.name}: a row of {task.dataset} has no column {name!r}; it has "
            f"{', '.join(row)}.{did_you_mean(name, row)}"
        )
    return row[name]
