"""Text files as a sequence of documents or pairs, read on demand.

A file is indexed once: where each line that holds something starts (8 bytes a line). The index
also proves that all of it is UTF-8. Lines are then read from a memory map.
"""

from __future__ import annotations

import bisect
import functools
import glob
import gzip
import itertools
import json
import mmap
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from mtf.data.config import PAIR_SUFFIXES, SUFFIXES, TEXT_SUFFIXES, TextFiles
from mtf.data.python_text import python_documents
from mtf.errors import UserError, did_you_mean

_NUM_CHECKED_LINES = 1000
_BLOCK_BYTES = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """What to read and what to write."""

    inputs: str
    targets: str


Kind = Literal["documents", "pairs"]


class _Part(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str | Pair: ...


class Examples:
    """All documents (`str`) or all pairs of a run, by number.

    Attributes:
      kind: which of the two.
      fingerprint: hash of the content, so that a resumed run sees whether it has changed.
    """

    def __init__(self, parts: Sequence[_Part], kind: Kind, fingerprint: str):
        self.kind: Kind = kind
        self.fingerprint = fingerprint
        self._parts = parts
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str | Pair:
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def open_examples(data: TextFiles) -> Examples:
    """Finds, indexes and checks the files of `data`, or the text that Python carries.

    Raises:
      UserError: a file is missing, empty, not UTF-8, of an unknown suffix, or its first thousand
        lines are not all what its suffix says; or documents and pairs are mixed.
    """
    if data.files is None:
        documents = python_documents()
        content = "\0".join(documents).encode("utf-8", errors="replace")
        return Examples([documents], "documents", f"{zlib.crc32(content):08x}")
    files = []
    for path in find_files(data.patterns):
        stat = path.stat()
        files.append(_open_file(path, stat.st_size, stat.st_mtime_ns))
    for file in files:
        file.check()
    first = files[0]
    for file in files:
        if file.kind != first.kind:
            raise UserError(
                f"data.files: {first.path} holds {first.kind} and {file.path} holds {file.kind}; "
                "expected files of one kind"
            )
    checksum = zlib.crc32(" ".join(f"{file.checksum:08x}" for file in files).encode())
    return Examples(files, first.kind, f"{checksum:08x}")


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Returns the files that paths or patterns name, in their order, a pattern's sorted.

    Raises:
      UserError: nothing is there, or it is a directory, or its suffix is not one of `SUFFIXES`.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.exists():
            matches = [path]
        else:
            matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise UserError(f"data.files: {_what_is_missing(pattern, path)}")
        for match in matches:
            if match.is_dir():
                raise UserError(
                    f"data.files: {match} is a directory; expected files, such as {match}/*.txt"
                )
            if not match.name.endswith(SUFFIXES):
                raise UserError(
                    f"data.files: {match} has a suffix that says nothing; "
                    f"expected one of {' '.join(SUFFIXES)}"
                )
        found.update(dict.fromkeys(matches))
    return list(found)


def _what_is_missing(pattern: str, path: Path) -> str:
    if "://" in pattern:
        return f"{pattern} is a remote address; expected a local file"
    if glob.has_magic(pattern):
        return f"no file matches {pattern}"
    folder = path.parent
    if not folder.is_dir():
        return f"{pattern} does not exist, and neither does the folder {folder}"
    names = [entry.name for entry in folder.iterdir()]
    return f"{pattern} does not exist.{did_you_mean(path.name, names)}"


class TextFile:
    """The documents or pairs of one file.

    Attributes:
      path: the file.
      kind: what its lines are.
      checksum: CRC-32 of the content.
    """

    def __init__(self, path: Path):
        self.path = path
        self._content = _content(path)
        self._starts, self.checksum = self._index()
        if not len(self._starts):
            raise UserError(f"data.files: {path} is empty; expected a line of text or more")
        self.kind: Kind = "pairs" if isinstance(self._read(0), Pair) else "documents"

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> str | Pair:
        example = self._read(index)
        if isinstance(example, Pair) != (self.kind == "pairs"):
            raise UserError(
                f"data.files: {self._place(int(self._starts[index]))} is not one of {self.kind}, "
                "as the file's first line is; expected one kind in all files"
            )
        return example

    def check(self) -> None:
        """Reads the first lines; raises UserError at one that is not what it should be."""
        for index in range(min(len(self), _NUM_CHECKED_LINES)):
            self[index]

    def _index(self) -> tuple[np.ndarray, int]:
        """Returns the offsets of the lines that are not blank, (lines,) int64, and a checksum."""
        starts, checksum = [np.empty(0, np.int64)], 0
        position = len(_UTF8_MARK) if self._content[:3] == _UTF8_MARK else 0
        size = len(self._content)
        while position < size:
            # Whole lines: up to the last end within the block, or the first one beyond it.
            limit = position + _BLOCK_BYTES
            end = self._content.rfind(b"\n", position, limit) + 1
            end = end or self._content.find(b"\n", position) + 1 or size
            block = self._content[position:end]
            checksum = zlib.crc32(block, checksum)
            self._check_utf8(block, position)
            characters = np.frombuffer(block, np.uint8)
            lines = np.flatnonzero(np.concatenate(([True], characters[:-1] == ord("\n"))))
            holds_text = np.logical_or.reduceat(characters > ord(" "), lines)
            starts.append(position + lines[holds_text])
            position = end
        return np.concatenate(starts), checksum

    def _check_utf8(self, block: bytes, position: int) -> None:
        try:
            block.decode()
        except UnicodeDecodeError as error:
            line = block.rfind(b"\n", 0, error.start) + 1
            raise UserError(
                f"data.files: {self._place(position + line)} is not UTF-8: "
                f"byte {error.start - line + 1} of the line is 0x{block[error.start]:02x}"
            ) from error

    def _read(self, index: int) -> str | Pair:
        start = int(self._starts[index])
        end = self._content.find(b"\n", start)
        line = self._content[start : end if end >= 0 else len(self._content)].decode().rstrip("\r")
        if self.path.name.endswith(TEXT_SUFFIXES):
            return line
        if self.path.name.endswith(PAIR_SUFFIXES):
            columns = line.split("\t")
            if len(columns) != 2:
                raise UserError(
                    f"data.files: {self._place(start)} has {len(columns)} columns; "
                    "expected 2: inputs, a tab, targets"
                )
            return Pair(*columns)
        return self._parse_json(line, start)

    def _parse_json(self, line: str, start: int) -> str | Pair:
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"data.files: {self._place(start)} is not JSON: {error.msg} at column {error.colno}"
            ) from error
        expected = 'expected {"text": …} or {"inputs": …, "targets": …}'
        if not isinstance(values, dict):
            raise UserError(f"data.files: {self._place(start)} is not a JSON object; {expected}")
        keys = ("inputs", "targets") if {"inputs", "targets"} & values.keys() else ("text",)
        for key in keys:
            if key not in values:
                raise UserError(
                    f"data.files: {self._place(start)} has no {key!r}, only "
                    f"{', '.join(map(repr, values)) or 'nothing'}; {expected}"
                )
            if not isinstance(values[key], str):
                raise UserError(
                    f"data.files: {self._place(start)}: {key!r} is "
                    f"{type(values[key]).__name__}; expected a string"
                )
        return Pair(values["inputs"], values["targets"]) if len(keys) == 2 else values["text"]

    def _place(self, start: int) -> str:
        """Returns `FILE:LINE` of a byte offset. Slow: for messages only."""
        line_number = self._content[:start].count(b"\n") + 1
        return f"{self.path}:{line_number}"


@functools.lru_cache(maxsize=256)
def _open_file(path: Path, size: int, mtime_ns: int) -> TextFile:
    """Opens a file once for training and evaluation; size and time make a changed file another."""
    return TextFile(path)


def _content(path: Path) -> bytes | mmap.mmap:
    """Returns the bytes of a file: a memory map, or what a .gz file holds."""
    try:
        with path.open("rb") as file:
            if path.name.endswith(".gz"):
                return gzip.decompress(file.read())
            # An empty file cannot be mapped.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.read(1) else b""
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"data.files: {path} cannot be read: {reason}") from error
