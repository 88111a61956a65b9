"""Defines the base class of all tasks."""

from __future__ import annotations

import abc
import csv
import hashlib
import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from mtf.base.errors import UserError, did_you_mean, did_you_mean_split
from mtf.data.sources.datasets import MissingDatasetError, Source
from mtf.data.sources.files import Rows, in_memory
from mtf.data.sources.records import RecordSource
from mtf.data.tasks.objectives import Objective

TaskKind = Literal["generate", "rank", "documents"]
VocabularyName = Literal["t5", "mt5", "romanian"]

SCORE_EVAL = "_score_eval"
SAME_SPLITS = {"train": "train", "validation": "validation", "test": "test"}

_Task = TypeVar("_Task", bound="Task")


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A dataset and the conversion of its records to text.

    Attributes:
      name: unique name of the task.
      dataset: name of the dataset, or kind of source (see `mtf.data.sources.datasets.Source`).
      subset: configuration of the dataset; None if the dataset has no configurations.
      kind: "generate" if a record yields one example; "rank" if it yields one example for each
        answer choice, so that the likelihoods of the choices can be compared; "documents" if it
        yields one text, which an objective turns into examples.
      objective: objective that turns documents into inputs and targets; None for other kinds.
      records: source of the records; None for a dataset of the mirror or the hub.
      splits: dict mapping each split of the task to the name of the dataset's split, which may
        not exist.
      inputs_add_eos, targets_add_eos: whether the tokens of inputs and targets end with EOS.
      vocabulary: vocabulary of the task outside mixtures; a mixture uses `Mixture.vocabulary`.
    """

    # Whether the user defines the task, so that its first record reveals most mistakes.
    is_custom: ClassVar[bool] = False

    name: str
    dataset: str
    subset: str | None
    kind: TaskKind = "generate"
    objective: Objective | None = None
    records: RecordSource | None = field(default=None, hash=False)
    splits: Mapping[str, str] = field(default_factory=lambda: dict(SAME_SPLITS), hash=False)
    inputs_add_eos: bool = False
    targets_add_eos: bool = True
    vocabulary: VocabularyName = "t5"

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that determines the text of the examples and their use of EOS."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """T5's names for the metrics."""
        return ()

    @property
    def label_classes(self) -> tuple[str, ...] | None:
        """The possible targets, in the order of their class indices; None for free text."""
        return None

    @property
    def prompt_name(self) -> str:
        """The name of the task without the suffix that marks ranked tasks."""
        return self.name.removesuffix(SCORE_EVAL) if self.kind == "rank" else self.name

    def score_eval(self: _Task) -> _Task:
        """Returns the version of this task that ranks answer choices."""
        return replace(self, name=self.name + SCORE_EVAL, kind="rank")

    def to_generate(self: _Task) -> _Task:
        """Returns the version of this ranked task that yields one example per record."""
        return replace(self, name=self.prompt_name, kind="generate")

    @abc.abstractmethod
    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the examples of record `index` of a split, or [] if the record is dropped.

        Raises UserError if the record lacks a column that the task needs.
        """

    def examples(
        self, rows: Iterable[Mapping[str, Any]], split: str, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yields the examples of `rows`, which must start at the first record of the split."""
        for index, row in enumerate(rows):
            yield from self.row_examples(row, index, split, seed)

    def postprocess(self, text: str) -> str | int:
        """Strips `text` and returns it or, if the task has classes, the index of its class.

        If none of the classes is equal to the text, returns -1.
        """
        text, classes = text.strip(), self.label_classes
        if classes is None:
            return text
        return classes.index(text) if text in classes else -1

    def source_split(self, split: str) -> str:
        """Returns the dataset's name for a split; raises UserError if the task lacks the split."""
        if split not in self.splits:
            raise UserError(
                f"task {self.name} has no split {split!r}; it has {', '.join(self.splits)}."
                f"{did_you_mean_split(split, self.splits)}"
            )
        return self.splits[split]

    def source_of(self, split: str) -> Source:
        """Returns the source of a split's records; raises the same errors as `source_split`."""
        maker = None if self.records is None else self.make_rows
        return Source(self.dataset, self.subset, self.source_split(split), maker)

    def make_rows(self, split: str) -> Rows:
        """Returns the records of a split of `records`; see `Source`."""
        assert self.records is not None
        try:
            found = self.records.records(split)
        except UserError as error:
            raise MissingDatasetError(str(error)) from error
        return found if isinstance(found, Rows) else in_memory(found)

    def scorer(self, split: str, lengths: Mapping[str, int], limit: int | None = None) -> Any:
        """Returns the `Scorer` of a SeqIO task that has metrics, or None for any other task.

        Raises UserError if all metrics need the model's scores for the targets instead of predicted
        texts.
        """
        return None

    def hash_of(self, *fields: object) -> str:
        """Returns a hash of the dataset, its splits, the use of EOS, and `fields` (JSON values)."""
        eos = (self.inputs_add_eos, self.targets_add_eos)
        common = [type(self).__name__, self.dataset, self.subset, self._hashed_splits(), *eos]
        return hashlib.sha256(json.dumps([common, *fields]).encode()).hexdigest()[:16]

    def _hashed_splits(self) -> list[tuple[str, str]]:
        return sorted(self.splits.items())


def rank_examples(
    inputs: str, targets: str, choices: Iterable[str], number: int
) -> list[dict[str, Any]]:
    """Returns one example per choice; its `idx` is [number of the record, index of the choice]."""
    return [
        {
            "inputs": inputs,
            "targets": choice,
            "idx": [number, index],
            "is_correct": choice == targets,
            "weight": 1.0,
        }
        for index, choice in enumerate(choices)
    ]


def column(row: Mapping[str, Any], name: str, task: Task) -> Any:
    """Returns a column's value; if it is missing, raises a UserError that lists the columns."""
    if name not in row:
        raise UserError(
            f"task {task.name}: a record of {task.dataset} has no column {name!r}; it has "
            f"{', '.join(row)}.{did_you_mean(name, row)}"
        )
    return row[name]


def table(name: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file in the directory of this module."""
    text = importlib.resources.files("mtf.data.tasks").joinpath(name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))
