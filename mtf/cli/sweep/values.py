"""Converts the values of a sweep, such as `V1,V2` or `LOW..HIGH`, to Optuna distributions."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from optuna import distributions

from mtf.base.errors import UserError
from mtf.config.paths import split_assignment

Distributions = Mapping[str, distributions.BaseDistribution]

_INTERVAL = re.compile(r"(log:)?([-+.\deE]+?)\.\.([-+.\deE]+)")  # such as log:1e-5..1e-2


def parse_values(texts: Sequence[str]) -> Distributions:
    """Returns a dict mapping each path in the arguments of `--sweep` to a distribution.

    Lists become categorical distributions of strings, and intervals become numeric distributions.

    Raises:
      UserError: if a text is malformed, or if a path or a value occurs twice.
    """
    found: dict[str, distributions.BaseDistribution] = {}
    for text in texts:
        path, values = split_assignment(text)
        if path in found:
            raise UserError(f"--sweep: {path} is given twice; list all its values in one argument.")
        try:
            found[path] = _distribution(values)
        except (ValueError, SyntaxError) as error:
            raise UserError(f"--sweep {text}: {error}") from error
    return found


def _distribution(values: str) -> distributions.BaseDistribution:
    if match := _INTERVAL.fullmatch(values):
        low, high = map(ast.literal_eval, match.groups()[1:])
        if isinstance(low, int) and isinstance(high, int):
            return distributions.IntDistribution(low, high, log=bool(match[1]))
        return distributions.FloatDistribution(low, high, log=bool(match[1]))
    texts = split_values(values)
    if not all(texts):
        raise ValueError("a value is empty; expected values separated by commas.")
    if twice := [text for i, text in enumerate(texts) if text in texts[:i]]:
        raise ValueError(f"the value {twice[0]} is given twice.")
    return distributions.CategoricalDistribution(texts)


def split_values(text: str) -> list[str]:
    """Splits a text at the commas that are outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def as_text(value: Any) -> str:
    """Formats a value for `--set`; floats are rounded to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def grid(values: Distributions) -> list[dict[str, str]]:
    """Returns all combinations of values, each as a dict mapping paths to values.

    Only the ends of an interval are used. The values of the last path change fastest.
    """
    ends = (getattr(each, "choices", None) or (each.low, each.high) for each in values.values())
    rows = itertools.product(*(map(as_text, each) for each in ends))
    return [dict(zip(values, row, strict=True)) for row in rows]
