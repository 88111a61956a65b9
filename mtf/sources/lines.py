"""Reads lines of text files: `.txt`, `.tsv` or `.jsonl`, plain or as `.gz`."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mtf.errors import UserError, did_you_mean

TEXT_SUFFIXES = (".txt", ".txt.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


@contextlib.contextmanager
def open_file(path: Path, setting: str) -> Iterator[IO[bytes]]:
    """Opens a file, decompressing `.gz`; raises UserError if it cannot be read."""
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{setting}: {path} cannot be read: {reason}") from error


def read_lines(path: Path, setting: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file with their numbers, from 1; errors name `setting`."""
    with open_file(path, setting) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def parse_line(suffix: str, line: bytes, expected: str) -> str | list[str] | dict[str, Any]:
    """Returns the text (`.txt`), the columns (`.tsv`) or the JSON object (`.jsonl`) of a line.

    Raises UserError if it is not UTF-8, or not a JSON object; the message names `expected`.
    """
    try:
        text = line.removesuffix(b"\n").decode().rstrip("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        ) from error
    if suffix != ".jsonl":
        return text.split("\t") if suffix == ".tsv" else text
    try:
        values = json.loads(text)
    except ValueError as error:
        column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"not valid JSON: {getattr(error, 'msg', error)}{column}") from error
    if not isinstance(values, dict):
        raise UserError(f"not a JSON object; expected {expected}")
    return values


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
