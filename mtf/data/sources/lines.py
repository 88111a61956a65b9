"""Reads the lines of `.txt`, `.tsv`, `.csv` or `.jsonl` files, also compressed (`.gz`)."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import itertools
import json
import mmap
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mtf.base import strict_json
from mtf.base.errors import UserError, did_you_mean
from mtf.data.sources.problems import Problems

TEXT_SUFFIXES = (".txt", ".txt.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz")
_BLOCK_BYTES = 1 << 20


class Lines:
    """The non-blank lines of a file, which are located with an index of 8 bytes per line.

    Attributes:
      path: path of the file.
      content: content of the file, as `read_content` returns it.
      starts: byte offsets of the non-blank lines.
    """

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
    """Returns the content of a file as a memory map, or in memory if it is `.gz` or `.csv`.

    Each record of a `.csv` file is a JSON object, on the line on which the record starts.
    """
    if split_suffix(path)[1] == ".csv":
        content, number = bytearray(), 1
        for start, record in read_lines(path, setting):
            content += b"\n" * (start - number) + record
            number = start
        return bytes(content)
    with open_file(path, setting) as file:
        # An empty file cannot be mapped.
        mapped = not path.name.endswith(".gz") and file.read(1)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()


def read_lines(path: Path, setting: str) -> Iterator[tuple[int, bytes]]:
    """Yields the number (from 1) and the content of each line; errors name `setting`.

    For a `.csv` file, yields the number of the first line of each record, and the record as JSON.
    """
    with open_file(path, setting) as file:
        first = file.readline().removeprefix(codecs.BOM_UTF8)
        lines = filter(None, itertools.chain([first], file))
        if split_suffix(path)[1] == ".csv":
            yield from _csv_records(path, lines, setting)
        else:
            yield from enumerate(lines, start=1)


def _csv_records(path: Path, lines: Iterable[bytes], setting: str) -> Iterator[tuple[int, bytes]]:
    """Yields the first line and the JSON object of each record after the first, the header.

    Raises UserError if the file is not valid CSV or, at the end, if records have other columns.
    """
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(map(_decode, lines), strict=True)
    columns, number, problems = list[str](), 1, Problems(setting)
    try:
        for values in reader:
            if not columns:
                columns = values
            elif len(values) == len(columns):
                record = dict(zip(columns, values, strict=True))
                yield number, json.dumps(record, ensure_ascii=False).encode()
            elif values:
                names = ", ".join(columns)
                problems.add(
                    f"{path}:{number}: expected the {len(columns)} columns of the first line "
                    f"({names}), not {len(values)}"
                )
            number = reader.line_num + 1
    except (csv.Error, UserError) as error:
        reason = error if isinstance(error, UserError) else f"not valid CSV: {error}"
        raise UserError(f"{setting}: {path}:{number}: {reason}") from error
    problems.check()


def parse_line(suffix: str, line: bytes, expected: str) -> str | list[str] | dict[str, Any]:
    """Returns the text (`.txt`), columns (`.tsv`), or object (`.jsonl`, `.csv`) of a line.

    Raises UserError if the line is not UTF-8, or if a `.jsonl` line is not a JSON object. Messages
    use `expected` as a description of the object.
    """
    text = _decode(line.removesuffix(b"\n")).rstrip("\r")
    if suffix not in (".jsonl", ".csv"):
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
