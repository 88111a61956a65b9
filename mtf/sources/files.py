"""Text files as a sequence of documents or pairs, read on demand.

A file is indexed once: where each line that holds something starts (8 bytes a line). All lines are
checked then, so that all that is wrong with a file is reported at once, before anything is
trained. Lines are later read from a memory map.
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

from mtf.errors import UserError, did_you_mean
from mtf.sources.problems import Problems
from mtf.sources.python_text import python_documents
from mtf.sources.suffixes import PAIR_SUFFIXES, SUFFIXES, TEXT_SUFFIXES

_BLOCK_BYTES = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """What to read and what to write."""

    inputs: str
    targets: str


LineKind = Literal["documents", "pairs"]


class _LineError(ValueError):
    """What is wrong with a line, to follow the line's place in a message."""


class _Part(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str | Pair: ...


class Examples:
    """All documents (`str`) or all pairs of a run, by number.

    Attributes:
      kind: which of the two.
      fingerprint: hash of the content, so that a resumed run sees whether it has changed.
    """

    def __init__(self, parts: Sequence[_Part], kind: LineKind, fingerprint: str):
        self.kind: LineKind = kind
        self.fingerprint = fingerprint
        self._parts = parts
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str | Pair:
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def open_examples(patterns: Sequence[str] | None, *, allow_empty_targets: bool) -> Examples:
    """Finds, indexes and checks files, or the text that Python carries.

    Args:
      patterns: paths and patterns, as for `find_files`; None: the text that Python carries.
      allow_empty_targets: whether the targets of a pair may be empty.

    Raises:
      UserError: a file is missing, empty or of an unknown suffix; lines are not UTF-8, not what
        the suffix says, or have empty targets that are not allowed (all are counted, the first
        few are named); or documents and pairs are mixed.
    """
    if patterns is None:
        documents = python_documents()
        content = "\0".join(documents).encode("utf-8", errors="replace")
        return Examples([documents], "documents", f"{zlib.crc32(content):08x}")
    files = []
    for path in find_files(patterns):
        stat = path.stat()
        files.append(_open_file(path, stat.st_size, stat.st_mtime_ns))
    _check_lines(files, allow_empty_targets)
    first = files[0]
    for file in files:
        if file.kind != first.kind:
            raise UserError(
                f"data.files: {first.path} holds {first.kind} and {file.path} holds {file.kind}; "
                "expected files of one kind"
            )
    checksum = zlib.crc32(" ".join(f"{file.checksum:08x}" for file in files).encode())
    return Examples(files, first.kind, f"{checksum:08x}")


def _check_lines(files: Sequence[TextFile], allow_empty_targets: bool) -> None:
    problems, num_empty = Problems("data.files"), 0
    for file in files:
        problems.merge(file.problems)
        if not allow_empty_targets:
            problems.merge(file.empty_targets)
            num_empty += file.empty_targets.count
    problems.check(
        f"Lines with empty targets: {num_empty:,}. Fill them in, take them out, or set "
        "data.allow_empty_targets=True (of TextFilesConfig) to train on them"
        if num_empty
        else ""
    )


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
        return f"no file matches {pattern}{_in_working_directory(pattern)}"
    folder = path.parent
    if not folder.is_dir():
        return (
            f"{pattern} does not exist{_in_working_directory(pattern)}, and neither does the "
            f"folder {folder}"
        )
    names = [entry.name for entry in folder.iterdir()]
    where = _in_working_directory(pattern)
    return f"{pattern} does not exist{where}.{did_you_mean(path.name, names)}"


def _in_working_directory(pattern: str) -> str:
    return "" if Path(pattern).expanduser().is_absolute() else f" in {Path.cwd()}"


class TextFile:
    """The documents or pairs of one file.

    Attributes:
      path: the file.
      checksum: CRC-32 of the content.
      problems: lines that cannot be used.
      empty_targets: pairs that have inputs alone.
    """

    def __init__(self, path: Path):
        self.path = path
        self.problems, self.empty_targets = Problems("data.files"), Problems("data.files")
        self._kind: LineKind | None = None
        self._is_text = path.name.endswith(TEXT_SUFFIXES)
        self._is_tsv = path.name.endswith(PAIR_SUFFIXES)
        self._content = _content(path)
        self._starts, self.checksum = self._index()
        if not len(self._starts):
            raise UserError(f"data.files: {path} is empty; expected a line of text or more")

    @property
    def kind(self) -> LineKind:
        """What its lines are."""
        return self._kind or "documents"

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> str | Pair:
        start = int(self._starts[index])
        end = self._content.find(b"\n", start)
        try:
            return self._parse(self._content[start : end if end >= 0 else len(self._content)])
        except _LineError as error:  # The file has changed since it was checked.
            number = self._content[:start].count(b"\n") + 1
            raise UserError(f"data.files: {self.path}:{number}{error}") from error

    def _index(self) -> tuple[np.ndarray, int]:
        """Returns the offsets of the lines that are not blank, (lines,) int64, and a checksum."""
        starts, checksum, number = [np.empty(0, np.int64)], 0, 1
        position = len(_UTF8_MARK) if self._content[:3] == _UTF8_MARK else 0
        size = len(self._content)
        while position < size:
            # Whole lines: up to the last end within the block, or the first one beyond it.
            limit = position + _BLOCK_BYTES
            end = self._content.rfind(b"\n", position, limit) + 1
            end = end or self._content.find(b"\n", position) + 1 or size
            block = self._content[position:end]
            checksum = zlib.crc32(block, checksum)
            characters = np.frombuffer(block, np.uint8)
            lines = np.flatnonzero(np.concatenate(([True], characters[:-1] == ord("\n"))))
            is_text = characters > ord(" ")
            if self._is_tsv:  # A tab between nothing and nothing makes no blank line.
                is_text |= characters == ord("\t")
            holds_text = np.logical_or.reduceat(is_text, lines)
            starts.append(position + lines[holds_text])
            self._check(block, holds_text, number)
            number += len(lines)
            position = end
        return np.concatenate(starts), checksum

    def _check(self, block: bytes, holds_text: np.ndarray, first: int) -> None:
        """Notes which lines of a block cannot be used; `first` is the number of its first one."""
        if self._is_text and _is_utf8(block):
            self._kind = "documents"
            return
        for number, line in enumerate(block.split(b"\n")[: len(holds_text)], first):
            if holds_text[number - first]:
                try:
                    self._check_kind(self._parse(line), number)
                except _LineError as error:
                    self.problems.add(f"{self.path}:{number}{error}")

    def _check_kind(self, example: str | Pair, number: int) -> None:
        kind: LineKind = "pairs" if isinstance(example, Pair) else "documents"
        self._kind = self._kind or kind
        if kind != self._kind:
            raise _LineError(
                f" is not one of {self.kind}, as the file's first line is; expected one kind in "
                "all files"
            )
        if isinstance(example, Pair) and not example.targets.strip():
            if not example.inputs.strip():
                raise _LineError(": 'inputs' and 'targets' are both empty; expected text")
            self.empty_targets.add(f"{self.path}:{number}: 'targets' is empty; expected text")

    def _parse(self, line: bytes) -> str | Pair:
        try:
            text = line.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise _LineError(
                f" is not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
            ) from error
        if self._is_text:
            return text
        if self._is_tsv:
            columns = text.split("\t")
            if len(columns) != 2:
                raise _LineError(f" has {len(columns)} columns; expected 2: inputs, a tab, targets")
            return Pair(*columns)
        return _parse_json(text)


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_json(line: str) -> str | Pair:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise _LineError(f" is not JSON: {error.msg} at column {error.colno}") from error
    expected = 'expected {"text": …} or {"inputs": …, "targets": …}'
    if not isinstance(values, dict):
        raise _LineError(f" is not a JSON object; {expected}")
    keys = ("inputs", "targets") if {"inputs", "targets"} & values.keys() else ("text",)
    for key in keys:
        if key not in values:
            found = ", ".join(map(repr, values)) or "nothing"
            raise _LineError(f" has no {key!r}, only {found}; {expected}")
        if not isinstance(values[key], str):
            raise _LineError(f": {key!r} is {type(values[key]).__name__}; expected a string")
    return Pair(values["inputs"], values["targets"]) if len(keys) == 2 else values["text"]


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
