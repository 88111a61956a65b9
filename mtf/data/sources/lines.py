"""Reads the lines of `.txt`, `.tsv`, `.csv` or `.jsonl` files, also compressed (`.gz`)."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import mmap
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mtf.base import strict_json
from mtf.base.errors import UserError, did_you_mean

TEXT_SUFFIXES = (".txt", ".txt.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz")
_BLOCK_BYTES = 1 << 20


class Lines:
    """The non-blank lines of a file, which are located with an index of 8 bytes per line.

    Attributes:
      path: path of the file.
      content: content of the file, as `read_content` returns it.
      starts: byte offsets of the non-blank lines.
      columns: names of the columns, if the format of the file requires that it contains them.
    """

    columns: Sequence[str] = ()

    def __init__(self, path: Path, content: bytes | mmap.mmap, blank: bytes):
        """Indexes the lines; a line is blank if it contains only characters in `blank`."""
        self.path, self.content = path, content
        self.first = len(codecs.BOM_UTF8) if content[:3] == codecs.BOM_UTF8 else 0
        self.starts = array("q", self._index(blank))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        end = self.content.find(b"\n", self.starts[index])
        return self.content[self.starts[index] : end if end >= 0 else len(self.content)]

    def where(self, index: int) -> str:
        """Returns the position of a line as `FILE:LINE`."""
        number = self.content[: self.starts[index]].count(b"\n") + 1
        return f"{self.path}:{number}"

    def _index(self, blank: bytes) -> bytes:
        import numpy as np  # Listing mixtures does not need NumPy.

        is_text = np.ones(256, bool)
        is_text[list(blank)] = False
        starts, position, size = [np.empty(0, np.int64)], self.first, len(self.content)
        while position < size:
            # End the block after its last newline or, if it has none, after the next newline.
            end = self.content.rfind(b"\n", position, position + _BLOCK_BYTES) + 1
            end = end or self.content.find(b"\n", position) + 1 or size
            block = np.frombuffer(self.content[position:end], np.uint8)
            lines = np.flatnonzero(np.concatenate(([True], block[:-1] == ord("\n"))))
            starts.append(position + lines[np.logical_or.reduceat(is_text[block], lines)])
            position = end
        return np.concatenate(starts).tobytes()


class CsvRecords(Lines):
    """The records of a CSV file, which may span several lines because of quoted line breaks.

    The first record, which contains the names of the columns, is not included. Raises UserError if
    the file is not valid CSV.

    Attributes:
      numbers: number of the first line of each record, from 1.
    """

    def __init__(self, path: Path, content: bytes | mmap.mmap, blank: bytes = b""):
        """Indexes the records; see `Lines`."""
        self.numbers = array("q")
        super().__init__(path, content, blank)
        if len(self):
            self.columns = next(_csv_reader(self[0].decode()))
            del self.starts[0], self.numbers[0]

    def __getitem__(self, index: int) -> bytes:
        following = self.starts[index + 1] if index + 1 < len(self) else len(self.content)
        return self.content[self.starts[index] : following]

    def where(self, index: int) -> str:
        """See `Lines`."""
        return f"{self.path}:{self.numbers[index]}"

    def _index(self, blank: bytes) -> bytes:
        starts, position, number = array("q"), self.first, 0

        def lines() -> Iterator[str]:
            nonlocal position, number
            while position < len(self.content):
                end = self.content.find(b"\n", position) + 1 or len(self.content)
                line, position, number = self.content[position:end], end, number + 1
                yield _decode(line)

        reader = csv.reader(lines(), strict=True)
        csv.field_size_limit(max(csv.field_size_limit(), len(self.content)))
        start, first_number = position, 1
        try:
            for record in reader:  # The reader reads no further than the end of a record.
                if record:
                    starts.append(start)
                    self.numbers.append(first_number)
                start, first_number = position, number + 1
        except (csv.Error, UserError) as error:
            reason = error if isinstance(error, UserError) else f"not valid CSV: {error}"
            raise UserError(f"{self.path}:{first_number}: {reason}") from error
        return starts.tobytes()


def open_lines(path: Path, content: bytes | mmap.mmap, blank: bytes) -> Lines:
    """Indexes the lines of a file or, if its suffix is `.csv`, its records."""
    return (CsvRecords if split_suffix(path)[1] == ".csv" else Lines)(path, content, blank)


def _csv_reader(text: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), strict=True)


@contextlib.contextmanager
def open_file(path: Path, setting: str) -> Iterator[IO[bytes]]:
    """Opens a file and decompresses it if it is `.gz`; raises UserError if it cannot be read."""
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{setting}: {path} cannot be read: {reason}") from error


def read_content(path: Path, setting: str) -> bytes | mmap.mmap:
    """Returns the content of a file as a memory map, or as decompressed bytes for `.gz` files."""
    with open_file(path, setting) as file:
        # An empty file cannot be mapped.
        mapped = not path.name.endswith(".gz") and file.read(1)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()


def read_lines(path: Path, setting: str) -> Iterator[tuple[int, bytes]]:
    """Yields the number (from 1) and the content of each line; errors name `setting`."""
    with open_file(path, setting) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def open_records(path: Path, setting: str) -> tuple[Sequence[str], Iterator[tuple[int, bytes]]]:
    """Returns the columns of a `.csv` file and its records, or () and `read_lines`."""
    if split_suffix(path)[1] != ".csv":
        return (), read_lines(path, setting)
    records = CsvRecords(path, read_content(path, setting))
    return records.columns, ((records.numbers[i], records[i]) for i in range(len(records)))


def parse_line(
    suffix: str, line: bytes, expected: str, columns: Sequence[str] = ()
) -> str | list[str] | dict[str, Any]:
    """Returns the text (`.txt`), columns (`.tsv`), or object (`.jsonl`, `.csv`) of a line.

    `columns` are the names of the columns of a `.csv` file. Raises UserError if the line is not
    UTF-8, if a `.jsonl` line is not a JSON object, or if a `.csv` record has other columns.
    Messages use `expected` as a description of the object.
    """
    text = _decode(line.removesuffix(b"\n")).rstrip("\r")
    if suffix == ".csv":
        values = next(_csv_reader(text))
        if len(values) != len(columns):
            names = ", ".join(columns)
            raise UserError(
                f"expected the {len(columns)} columns of the first line ({names}), not "
                f"{len(values)}"
            )
        return dict(zip(columns, values, strict=True))
    if suffix != ".jsonl":
        return text.split("\t") if suffix == ".tsv" else text
    try:
        values = strict_json.loads(text)
    except ValueError as error:
        column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"not valid JSON: {getattr(error, 'msg', error)}{column}") from error
    if not isinstance(values, dict):
        raise UserError(f"not a JSON object; expected {expected}")
    return values


def _decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in line:
            command = "iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE"
            raise UserError(f"UTF-16, not UTF-8. To convert the file: {command}") from error
        raise UserError(
            f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        ) from error


def get_field(values: Mapping[str, Any], name: str, expected: str) -> Any:
    """Returns a field of a JSON object; raises UserError if it is missing."""
    if name not in values:
        found = ", ".join(map(repr, values)) or "nothing"
        hint = did_you_mean(name, values)
        raise UserError(f"{name!r} is missing; found {found}; expected {expected}.{hint}")
    return values[name]


def get_text(values: Mapping[str, Any], name: str, expected: str) -> str:
    """Returns a field of a JSON object; raises UserError if it is missing or not a string."""
    value = get_field(values, name, expected)
    if not isinstance(value, str):
        raise UserError(f"{name!r} has type {type(value).__name__}; expected a string")
    return value


def check_unicode(name: str, text: str) -> None:
    """Raises UserError if `text` contains half of a surrogate pair, which JSON can express."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} contains half of a surrogate pair, which is not a character; remove it"
        ) from error


def split_suffix(path: Path) -> tuple[str, str]:
    """Returns the name of a file without its suffix, and the suffix without `.gz`."""
    stem, dot, suffix = path.name.removesuffix(".gz").rpartition(".")
    return stem, dot + suffix
