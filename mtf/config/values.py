"""The text of a value: a Python literal, or a bare word where a string is allowed."""

from __future__ import annotations

import ast
from typing import Any

from mtf.config import types
from mtf.config.types import Mismatch


def parse(text: str, declared: Any) -> Any:
    """Reads a value of type `declared` from the command line.

    Raises:
      Mismatch: where the text is not such a value.
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _word(text, declared)
    return types.convert(value, declared)


def _word(text: str, declared: Any) -> Any:
    expected = f"expected {types.describe(declared)}"
    if not text:
        raise Mismatch(f"{expected}, got nothing. An empty string is written ''.")
    if text[0] in "([{\"'":
        raise Mismatch(f"{expected}; {text} is not a complete Python literal.")
    if "," in text and types.allows_sequence(declared):
        hint = types.word_hint(text, declared)
        raise Mismatch(f"{expected}; {text} is neither a list nor one word.{hint}")
    if not types.allows_word(declared):
        raise Mismatch(f"{expected}, got the word {text}.{types.word_hint(text, declared)}")
    return types.convert(text, declared)


def split_call(text: str) -> tuple[str, str]:
    """Splits `name(kw=1)` into `name` and `(kw=1)`; without arguments the second is empty."""
    name, bracket, rest = text.partition("(")
    return name.strip(), bracket + rest
