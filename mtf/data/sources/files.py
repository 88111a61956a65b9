"""Reads records from local files, as dicts mapping column names to values.

| suffix | record |
|---|---|
| `.parquet` | a row |
| `.jsonl` | a line, which contains a JSON object |
| `.json` | a JSON object in a list; a file that does not start with a list is read as `.jsonl` |
| `.tsv` | a line; the first line of the file contains the names of the columns |
| `.csv` | a record, with quotes as in RFC 4180; the first one contains the names of the columns |
| `.txt` | a line, which becomes the column `text` |

All formats except Parquet may be compressed (`.gz`). Blank lines are skipped.
"""

from __future__ import annotations

import abc
import bisect
import codecs
import contextlib
import functools
import itertools
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtf.base import signals, strict_json
from mtf.base.errors import UserError
from mtf.base.extras import import_extra
from mtf.data.sources.lines import Lines, parse_line, read_content, split_suffix
from mtf.data.sources.patterns import matching, why_missing

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
_NUM_AT_ONCE = 1000
_EXPECTED = "an object with the columns of a record"


class Rows(abc.ABC):
    """The records of a split, as dicts that contain Python values."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows(0, len(self))

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields records `start` to `stop` - 1 without reading all of the preceding records."""

    def kept(self) -> Rows | None:
        """Returns a copy of the records in a temporary file, or None if a copy saves no time."""
        return None


def keep(records: Iterable[dict[str, Any]], what: str) -> Rows:
    """Copies records to a temporary ArrayRecord file, which other processes can also read.

    The file is deleted when the returned object is garbage-collected. Raises UserError if the disk
    is full; the message calls the records `what`.
    """
    from array_record.python.array_record_module import ArrayRecordWriter  # This imports NumPy.

    num_rows = 0
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.NamedTemporaryFile(prefix="mtf-records-")).name
        stack.enter_context(signals.removed_on_stop(path))
        writer = ArrayRecordWriter(path, "group_size:32,uncompressed")
        try:
            for record in records:
                writer.write(pickle.dumps(record))
                num_rows += 1
            writer.close()
        except RuntimeError as error:
            raise UserError(
                f"{what} do not fit into the temporary file {path}: {error}. Set TMPDIR to a "
                "directory with more space"
            ) from error
        kept = SlicedRows(num_rows, functools.partial(_read_kept, path, num_rows))
        weakref.finalize(kept, stack.pop_all().close)
    return kept


def _read_kept(path: str, num_rows: int, start: int, stop: int) -> Iterator[dict[str, Any]]:
    from array_record.python.array_record_module import ArrayRecordReader

    reader, stop = ArrayRecordReader(path), min(stop, num_rows)
    for first in range(start, stop, _NUM_AT_ONCE):
        yield from map(pickle.loads, reader.read(first, min(first + _NUM_AT_ONCE, stop)))


def open_files(pattern: str, tsv_columns: tuple[str, ...] | None = None) -> Rows:
    """Returns the records of all files that match a path or pattern, in the order of the paths.

    `tsv_columns` contains the column names of TSV files without a header. If the first line of a
    file consists of exactly these names, it is skipped. If `tsv_columns` is None, the first line
    contains the column names.

    Raises UserError if no file matches, or if a file cannot be read or has an unknown suffix.
    """
    paths = matching(pattern, "files")
    if not paths:
        raise UserError(why_missing(pattern))
    opened = [_open(path, tsv_columns) for path in paths]
    return opened[0] if len(opened) == 1 else _join(opened)


def file_states(pattern: str) -> tuple[str, ...]:
    """Returns the path, size and modification time of each file, or only the pattern if remote."""
    if "://" in pattern:
        return (pattern,)
    stats = [(path, path.stat()) for path in matching(pattern, "files")]
    return tuple(f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def _open(path: Path, tsv_columns: tuple[str, ...] | None) -> Rows:
    suffix = split_suffix(path)[1]
    if suffix not in SUFFIXES or path.name.endswith(".parquet.gz"):
        raise UserError(
            f"{path} has an unknown suffix; expected one of {' '.join(SUFFIXES)}, optionally "
            "followed by .gz (except .parquet)"
        )
    if suffix == ".parquet":
        return open_parquet(path)
    content = read_content(path, "files")
    if suffix == ".json" and content[:64].removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
        return _read_list(path, bytes(content))
    lines = Lines(path, content, blank=b" \r\n")
    return _LineRows(lines, ".jsonl" if suffix == ".json" else suffix, tsv_columns)


def open_parquet(path: Path) -> Rows:
    """Returns the records of a Parquet file; at most 1,000 of them are in memory at a time."""
    parquet = import_extra("pyarrow.parquet", "reading Parquet files")

    def opened() -> Any:
        try:
            return parquet.ParquetFile(path)
        except (ValueError, OSError) as error:
            raise UserError(f"{path} is not a Parquet file: {error}") from error

    def rows(start: int, stop: int) -> Iterator[dict[str, Any]]:
        position = 0
        with opened() as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if position + size <= start or stop <= position:
                    position += size
                    continue
                for batch in decoded(file.iter_batches(batch_size=1000, row_groups=[group])):
                    first = max(start - position, 0)
                    yield from batch.slice(first, max(stop - position - first, 0)).to_pylist()
                    position += len(batch)

    def decoded(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except (OSError, ValueError) as error:  # pyarrow's errors are also of these types.
            raise UserError(f"{path} is damaged: {error}") from error

    with opened() as file:
        return SlicedRows(int(file.metadata.num_rows), rows)


class _LineRows(Rows):
    """The records of a text file with one record per line."""

    def __init__(self, lines: Lines, suffix: str, tsv_columns: tuple[str, ...] | None):
        self._lines, self._suffix = lines, suffix
        self._columns = list(tsv_columns or ())
        self._where_named = "of a headerless file" if tsv_columns else "of the first line"
        if suffix == ".tsv" and len(lines):
            first = self._parse(0)
            if tsv_columns is None or first == self._columns:
                self._columns = first
                del lines.starts[0]

    def __len__(self) -> int:
        return len(self._lines)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        for index in range(len(self))[start:stop]:
            values = self._parse(index)
            if isinstance(values, str):
                yield {"text": values}
            elif isinstance(values, dict):
                yield values
            elif len(values) == len(self._columns):
                yield dict(zip(self._columns, values, strict=True))
            else:
                columns = f"{len(self._columns)} columns {self._where_named}"
                raise UserError(
                    f"{self._lines.where(index)}: expected the {columns} "
                    f"({', '.join(self._columns)}), not {len(values)}"
                )

    def _parse(self, index: int) -> Any:
        try:
            return parse_line(self._suffix, self._lines[index], _EXPECTED)
        except UserError as error:
            raise UserError(f"{self._lines.where(index)}: {error}") from error


class SlicedRows(Rows):
    """Records that a function returns, given `start` and `stop`."""

    def __init__(self, num_rows: int, sliced: Callable[[int, int], Iterable[dict[str, Any]]]):
        self._num_rows, self._sliced = num_rows, sliced

    def __len__(self) -> int:
        return self._num_rows

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        return iter(self._sliced(start, stop))


def in_memory(records: Sequence[dict[str, Any]]) -> Rows:
    """Returns `records` as `Rows`."""
    return SlicedRows(len(records), lambda start, stop: records[start:stop])


def _read_list(path: Path, content: bytes) -> Rows:
    """Returns the objects of a JSON file that contains a list."""
    try:
        records = strict_json.loads(content)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(f"{path}: item {number} is not a JSON object; expected {_EXPECTED}")
    return in_memory(records)


class Part(NamedTuple):
    """One of the two parts into which the records of a split are divided at random.

    Attributes:
      held_out_fraction: size of the smaller part, as a fraction of all records.
      is_held_out: whether this is the smaller part.
    """

    held_out_fraction: float
    is_held_out: bool


def part_of(whole: Rows, part: Part) -> Rows:
    """Returns the records of a part, in their order in `whole`."""
    import numpy as np

    if len(whole) < 2:
        raise UserError(f"expected at least 2 records, of which one is held out, not {len(whole)}")
    num_held_out = min(max(round(len(whole) * part.held_out_fraction), 1), len(whole) - 1)
    # The raw output of Philox is the same in all versions of NumPy.
    order = np.argsort(np.random.Philox(key=0).random_raw(len(whole)), kind="stable")
    chosen = np.sort(order[:num_held_out] if part.is_held_out else order[num_held_out:])

    def rows(start: int, stop: int) -> Iterator[dict[str, Any]]:
        numbers = chosen[start:stop].tolist()
        if numbers:
            first, last, wanted = numbers[0], numbers[-1], set(numbers)
            for number, row in enumerate(whole.rows(first, last + 1), first):
                if number in wanted:
                    yield row

    return SlicedRows(len(chosen), rows)


def _join(parts: Sequence[Rows]) -> Rows:
    """Returns the concatenation of the records of several files."""
    ends = list(itertools.accumulate(map(len, parts)))

    def rows(start: int, stop: int) -> Iterator[dict[str, Any]]:
        for index in range(bisect.bisect_right(ends, start), len(parts)):
            before = ends[index - 1] if index else 0
            if before >= stop:
                return
            part = parts[index]
            yield from part.rows(max(start - before, 0), min(stop - before, len(part)))

    return SlicedRows(ends[-1], rows)
