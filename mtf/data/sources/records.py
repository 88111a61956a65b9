"""Defines the sources of records that are not datasets: local files, and custom sources."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtf.data.sources.files import Rows, file_states, open_files

# The names that tasks have in caches and reports instead of the name of a dataset.
FILES, PAIRS, CUSTOM = "files", "file_pairs", "custom"


class RecordSource(abc.ABC):
    """A source of the records of a task; a custom source is a dataclass that inherits from it.

    Attributes:
      splits: dict mapping each split of the task to its name in the source, such as a path.
      kind: name that stands for the source where tasks have the name of a dataset.
    """

    kind: str = CUSTOM
    splits: Mapping[str, str]

    @abc.abstractmethod
    def records(self, name: str) -> Rows | Sequence[dict[str, Any]]:
        """Returns the records of a split, given its name in the source.

        Every process calls this method, and must get the same records in the same order. Raises
        UserError if there are no such records.
        """

    def states(self, name: str) -> tuple[str, ...]:
        """Returns values that change if the records of a split change, such as times of files."""
        return ()


@dataclass(frozen=True)
class FileSource(RecordSource):
    """Local files in any of the formats listed in `mtf.data.sources.files`.

    Attributes:
      splits: dict mapping each split of the task to the path or pattern of its files. Relative
        paths are resolved against the working directory of the command.
      tsv_header: whether the first line of a TSV file names its columns; if not, the columns are
        `inputs` and `targets`.
    """

    splits: Mapping[str, str]
    tsv_header: bool = True

    def records(self, name: str) -> Rows:
        """See `RecordSource`."""
        return open_files(name, None if self.tsv_header else ("inputs", "targets"))

    def states(self, name: str) -> tuple[str, ...]:
        """See `RecordSource`."""
        return file_states(name)

    @property
    def kind(self) -> str:  # type: ignore[override]
        """See `RecordSource`."""
        return FILES if self.tsv_header else PAIRS
