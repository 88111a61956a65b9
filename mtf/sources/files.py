"""Reads the records of local files, as dicts of columns.

| suffix | a record |
|---|---|
| `.parquet` | a row |
| `.jsonl` | the object of a line |
| `.json` | an object of a list; without a list, as `.jsonl` |
| `.tsv` | a line; the first line names the columns |
| `.txt` | a line, as the column `text` |

All but Parquet may be compressed (`.gz`). Blank lines are skipped.
"""

from __future__ import annotations

import abc
import bisect
import codecs
import contextlib
import errno
import itertools
import json
import mmap
import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mtf import signals
from mtf.errors import UserError
from mtf.extras import import_extra
from mtf.sources.lines import open_file, parse_line, split_suffix
from mtf.sources.patterns import matching, why_missing

SUFFIXES = (".parquet", ".jsonl", ".json", ".tsv", ".txt")
# Number of records between two places that are remembered.
_KEPT_STRIDE = 4096
_EXPECTED = "an object with the columns of a record"


class Rows(abc.ABC):
    """The records of a split, as dicts of Python values."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows(0, len(self))

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields records `start` to `stop` - 1, without reading all those before."""

    def kept(self) -> KeptRows | None:
        """Returns the records in a temporary file, if that is cheaper than to make them again."""
        return None


class KeptRows(Rows):
    """Records in a temporary file, which other processes can read, too.

    `keep` makes one; the file exists until it is no longer used in that process.
    """

    def __init__(self, path: str, num_rows: int, starts: Sequence[int]):
        """`starts` are the places in the file of every `_KEPT_STRIDE`-th record."""
        self._path, self._num_rows, self._starts = path, num_rows, starts

    def __len__(self) -> int:
        return self._num_rows

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        stop = min(stop, self._num_rows)
        if start >= stop:
            return
        with open(self._path, "rb") as file:
            file.seek(self._starts[start // _KEPT_STRIDE])
            for number in range(start // _KEPT_STRIDE * _KEPT_STRIDE, stop):
                record = pickle.load(file)
                if number >= start:
                    yield record

    def kept(self) -> KeptRows:
        """See `Rows`."""
        return self


def keep(records: Iterable[dict[str, Any]], what: str) -> KeptRows:
    """Writes records to a temporary file.

    Raises UserError, which names the records as `what`, if the disk is full.
    """
    num_rows, starts = 0, array("Q")
    with contextlib.ExitStack() as stack:
        descriptor, path = tempfile.mkstemp(prefix="mtf-records-")
        stack.callback(os.unlink, path)
        stack.enter_context(signals.removed_on_stop(path))
        try:
            with open(descriptor, "wb") as file:
                for num_rows, record in enumerate(records, start=1):
                    if (num_rows - 1) % _KEPT_STRIDE == 0:
                        starts.append(file.tell())
                    pickle.dump(record, file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(
                f"{what} do not fit into the temporary file {path}: {error.strerror}. Set TMPDIR "
                "to a directory with more space"
            ) from error
        kept = KeptRows(path, num_rows, starts)
        weakref.finalize(kept, stack.pop_all().close)
    return kept


def open_files(pattern: str, tsv_columns: tuple[str, ...] | None = None) -> Rows:
    """Returns the records of the files that match a path or pattern, in the files' sorted order.

    `tsv_columns` are the columns of TSV files without a header; a first line that has exactly these
    names is skipped. None: the first line names the columns.

    Raises UserError if no file matches, or one cannot be read or has an unknown suffix.
    """
    paths = matching(pattern, "files")
    if not paths:
        raise UserError(why_missing(pattern))
    opened = [_open(path, tsv_columns) for path in paths]
    return opened[0] if len(opened) == 1 else _Joined(opened)


def file_states(pattern: str) -> tuple[str, ...]:
    """Returns the path, size and time of each local file that matches; edits change them."""
    if "://" in pattern:
        return (pattern,)
    stats = [(path, path.stat()) for path in matching(pattern, "files")]
    return tuple(f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def _open(path: Path, tsv_columns: tuple[str, ...] | None) -> Rows:
    suffix = split_suffix(path)[1]
    if suffix not in SUFFIXES or path.name.endswith(".parquet.gz"):
        raise UserError(
            f"{path} has an unknown suffix; expected one of {' '.join(SUFFIXES)}, or with .gz "
            "added (except .parquet)"
        )
    if suffix == ".parquet":
        return ParquetRows(path)
    with open_file(path, "source") as file:
        # An empty file cannot be mapped.
        mapped = not path.name.endswith(".gz") and file.read(1)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
    if suffix == ".json" and content[:64].removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
        return _ListRows(path, bytes(content))
    return _LineRows(path, ".jsonl" if suffix == ".json" else suffix, content, tsv_columns)


class ParquetRows(Rows):
    """The records of a Parquet file; at most a thousand are in memory."""

    def __init__(self, path: Path):
        self.path = path
        with self._open() as file:
            self._num_rows = int(file.metadata.num_rows)

    def __len__(self) -> int:
        return self._num_rows

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        position = 0
        with self._open() as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if position + size <= start or stop <= position:
                    position += size
                    continue
                for batch in file.iter_batches(batch_size=1000, row_groups=[group]):
                    first = max(start - position, 0)
                    yield from batch.slice(first, max(stop - position - first, 0)).to_pylist()
                    position += len(batch)

    def _open(self) -> Any:
        parquet = import_extra("pyarrow.parquet", "reading Parquet files")
        try:
            return parquet.ParquetFile(self.path)
        except (ValueError, OSError) as error:
            raise UserError(f"{self.path} is not a Parquet file: {error}") from error


class _LineRows(Rows):
    """The records of a file of lines, which is indexed (8 bytes per line), not loaded."""

    def __init__(
        self,
        path: Path,
        suffix: str,
        content: bytes | mmap.mmap,
        tsv_columns: tuple[str, ...] | None,
    ):
        self._path = path
        self._suffix = suffix
        self._content = content
        self._starts = array("q", self._nonblank_lines())
        self._columns = list(tsv_columns or ())
        self._where_named = "without a header" if tsv_columns else "of the first line"
        if suffix == ".tsv" and self._starts:
            first = self._parse(self._starts[0])
            if tsv_columns is None or first == self._columns:
                self._columns = first
                del self._starts[0]

    def __len__(self) -> int:
        return len(self._starts)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        for offset in self._starts[start:stop]:
            values = self._parse(offset)
            if isinstance(values, str):
                yield {"text": values}
            elif isinstance(values, dict):
                yield values
            elif len(values) == len(self._columns):
                yield dict(zip(self._columns, values, strict=True))
            else:
                names = ", ".join(self._columns)
                raise UserError(
                    f"{self._where(offset)}: it has {len(values)} columns; expected the "
                    f"{len(self._columns)} {self._where_named}: {names}"
                )

    def _nonblank_lines(self) -> Iterator[int]:
        position = len(codecs.BOM_UTF8) if self._content[:3] == codecs.BOM_UTF8 else 0
        while position < len(self._content):
            end = self._end(position)
            if self._content[position:end].strip(b" \r"):
                yield position
            position = end + 1

    def _end(self, position: int) -> int:
        end = self._content.find(b"\n", position)
        return len(self._content) if end < 0 else end

    def _parse(self, offset: int) -> Any:
        try:
            return parse_line(self._suffix, self._content[offset : self._end(offset)], _EXPECTED)
        except UserError as error:
            raise UserError(f"{self._where(offset)}: {error}") from error

    def _where(self, offset: int) -> str:
        number = self._content[:offset].count(b"\n") + 1
        return f"{self._path}:{number}"


class _ListRows(Rows):
    """The objects of a JSON file that is a list, all in memory."""

    def __init__(self, path: Path, content: bytes):
        try:
            self._rows = json.loads(content)
        except ValueError as error:
            raise UserError(f"{path} is not valid JSON: {error}") from error
        for number, row in enumerate(self._rows, 1):
            if not isinstance(row, dict):
                raise UserError(
                    f"{path}: item number {number} is not an object; expected {_EXPECTED}"
                )

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        return iter(self._rows[start:stop])


class _Joined(Rows):
    """The records of several files, one file after the other."""

    def __init__(self, parts: Sequence[Rows]):
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        for index in range(bisect.bisect_right(self._ends, start), len(self._parts)):
            before = self._ends[index - 1] if index else 0
            if before >= stop:
                return
            part = self._parts[index]
            yield from part.rows(max(start - before, 0), min(stop - before, len(part)))
