"""Reads documents or pairs of inputs and targets from text files on demand.

When a file is opened, all of its lines are indexed and checked.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import functools
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from mtf.base.errors import UserError
from mtf.data.sources.lines import (
    SUFFIXES,
    Lines,
    get_text,
    parse_line,
    read_content,
    split_suffix,
)
from mtf.data.sources.patterns import matching, why_missing
from mtf.data.sources.problems import Problems
from mtf.data.sources.python_text import python_documents

_BLOCK_BYTES = 1 << 20
_EXPECTED = '{"text": …} or {"inputs": …, "targets": …}'


class Pair(NamedTuple):
    """A pair of inputs and targets, both of which are text."""

    inputs: str
    targets: str


LineKind = Literal["documents", "pairs"]


class Examples:
    """A sequence of all documents (`str`) or all pairs (`Pair`) for a run.

    Attributes:
      kind: "documents" or "pairs".
      fingerprint: hash of the content.
    """

    def __init__(self, parts: Sequence[TextFile | Sequence[str]], kind: LineKind, fingerprint: str):
        self.kind: LineKind = kind
        self.fingerprint = fingerprint
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str | Pair:
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def open_examples(patterns: Sequence[str] | None, *, allow_empty_targets: bool) -> Examples:
    """Opens and checks text files; if `patterns` is None, uses Python's documentation instead.

    Raises UserError if a file is missing, is empty or has an unknown suffix, if any line cannot be
    used (the message counts such lines and lists the first ten), or if the files contain both
    documents and pairs.
    """
    if patterns is None:
        documents = python_documents()
        content = "\0".join(documents).encode("utf-8", errors="replace")
        return Examples([documents], "documents", f"{zlib.crc32(content):08x}")
    files = []
    for path in find_files(patterns):
        stat = path.stat()
        files.append(_open_file(path, stat.st_size, stat.st_mtime_ns))
    problems, num_empty = Problems("data.files"), 0
    for file in files:
        problems.merge(file.problems)
        if not allow_empty_targets:
            problems.merge(file.empty_targets)
            num_empty += file.empty_targets.count
    problems.check(
        f"Lines with empty targets: {num_empty:,}. Fill in the targets, remove the lines, or set "
        "data.allow_empty_targets=True (in TextFilesConfig) to train on such lines"
        if num_empty
        else ""
    )
    first = files[0]
    for file in files:
        if file.kind != first.kind:
            raise UserError(
                f"data.files: {first.path} contains {first.kind} and {file.path} contains "
                f"{file.kind}; expected only documents or only pairs"
            )
    checksum = zlib.crc32(" ".join(f"{file.checksum:08x}" for file in files).encode())
    return Examples(files, first.kind, f"{checksum:08x}")


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Returns the files that match the patterns, in pattern order and sorted within each pattern.

    Raises UserError if a file is missing, is a directory, or has a suffix not in `SUFFIXES`.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = matching(pattern, "data.files")
        if not matches:
            raise UserError(f"data.files: {why_missing(pattern)}")
        for match in matches:
            if match.is_dir():
                raise UserError(
                    f"data.files: {match} is a directory; expected files, e.g. {match}/*.txt"
                )
            if not match.name.endswith(SUFFIXES):
                raise UserError(
                    f"data.files: {match} has an unknown suffix; expected one of "
                    f"{' '.join(SUFFIXES)}"
                )
            found[match] = None
    return list(found)


def named_files(patterns: Sequence[str], setting: str, advice: str) -> dict[str, Path]:
    """Returns a dict mapping names without suffixes to the files that match `patterns`.

    Raises a UserError that ends with `advice` if two files have the same name.
    """
    files: dict[str, Path] = {}
    for path in find_files(patterns):
        name, _ = split_suffix(path)
        if files.setdefault(name, path) != path:
            raise UserError(
                f"{setting}: {files[name]} and {path} have the same name, {name}, {advice}"
            )
    return files


class TextFile:
    """The documents or pairs of one file.

    Attributes:
      path: path of the file.
      kind: "documents" or "pairs".
      checksum: CRC-32 of the content.
      problems: lines that cannot be used.
      empty_targets: pairs whose targets are empty.
    """

    def __init__(self, path: Path):
        self.path = path
        self.kind: LineKind = "documents"
        self.problems, self.empty_targets = Problems("data.files"), Problems("data.files")
        self._suffix = split_suffix(path)[1]
        # A TSV line with a tab but empty inputs and targets does not count as blank.
        blank = bytes(range(33)).replace(b"\t" if self._suffix == ".tsv" else b"", b"")
        self._lines = Lines(path, read_content(path, "data.files"), blank)
        self.checksum = zlib.crc32(memoryview(self._lines.content)[self._lines.first :])
        if not len(self):
            raise UserError(f"data.files: {path} is empty; expected at least one line of text")
        if self._suffix != ".txt" or not self._is_utf8():
            self._check()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> str | Pair:
        return self._parse(self._lines[index])

    def _is_utf8(self) -> bool:
        content = self._lines.content
        starts = range(0, len(content), _BLOCK_BYTES)
        blocks = (content[start : start + _BLOCK_BYTES] for start in starts)
        with contextlib.suppress(UnicodeDecodeError):
            return all(True for _ in codecs.iterdecode(blocks, "utf-8"))
        return False

    def _check(self) -> None:
        """Adds unusable lines to `problems`, and pairs with empty targets to `empty_targets`."""
        first_kind: LineKind | None = None
        number, position = 1, 0
        for index, start in enumerate(self._lines.starts):
            number += self._lines.content[position:start].count(b"\n")
            position = start
            try:
                example = self._parse(self._lines[index])
                kind: LineKind = "pairs" if isinstance(example, Pair) else "documents"
                self.kind = first_kind = first_kind or kind
                if kind != first_kind:
                    raise UserError(
                        f"this is a {kind[:-1]}, but the file's first line is a {first_kind[:-1]}; "
                        "expected only documents or only pairs"
                    )
                if isinstance(example, Pair) and not example.targets.strip():
                    if not example.inputs.strip():
                        raise UserError("'inputs' and 'targets' are both empty; expected text")
                    self.empty_targets.add(
                        f"{self.path}:{number}: 'targets' is empty; expected text"
                    )
            except UserError as error:
                self.problems.add(f"{self.path}:{number}: {error}")

    def _parse(self, line: bytes) -> str | Pair:
        values = parse_line(self._suffix, line, _EXPECTED)
        if isinstance(values, str):
            return values
        if isinstance(values, list):
            if len(values) != 2:
                raise UserError(f"expected 2 columns (inputs, targets), not {len(values)}")
            return Pair(*values)
        if "inputs" in values or "targets" in values:
            return Pair(*(get_text(values, name, _EXPECTED) for name in Pair._fields))
        return get_text(values, "text", _EXPECTED)


@functools.lru_cache(maxsize=256)
def _open_file(path: Path, size: int, mtime_ns: int) -> TextFile:
    """Opens a file; the result is cached until the file's size or modification time changes."""
    return TextFile(path)
