"""The values of a sweep: `PATH=V1,V2`, and which of them a run has."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from mtf.config.paths import split_assignment
from mtf.errors import UserError

T = TypeVar("T")

Mode = Literal["grid", "zip", "random", "optuna"]

# Such as 1e-5..1e-2, or log:1e-5..1e-2.
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_INTERVAL = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_OPENING, _CLOSING = "([{", ")]}"


class Interval(NamedTuple):
    """An interval from which values are drawn: uniformly, or uniformly in their logarithm."""

    low: float
    high: float
    is_log: bool
    is_integer: bool

    def draw(self, rng: random.Random) -> str:
        """Returns a value as text."""
        if self.is_integer and not self.is_log:
            return self.as_text(rng.randint(int(self.low), int(self.high)))
        low, high = (math.log(x) if self.is_log else x for x in (self.low, self.high))
        value = rng.uniform(low, high)
        return self.as_text(math.exp(value) if self.is_log else value)

    def as_text(self, value: float) -> str:
        """Returns a value as text, with four significant digits unless it is an integer."""
        return str(round(value)) if self.is_integer else f"{value:.4g}"


class Axis(NamedTuple):
    """A setting and its values: texts as for `--set`, or an interval."""

    path: str
    values: tuple[str, ...] | Interval


def as_axes(values: Mapping[str, Sequence[Any] | str]) -> list[Axis]:
    """Returns the settings for path → a list of values, or a text as for `parse_axis`."""
    return [
        parse_axis(f"{path}={each}")
        if isinstance(each, str)
        else Axis(path, tuple(map(as_text, each)))
        for path, each in values.items()
    ]


def as_text(value: Any) -> str:
    """Returns a value as text for `--set`."""
    return value if isinstance(value, str) else repr(value)


def parse_axis(text: str) -> Axis:
    """Parses `PATH=V1,V2,…`, or `PATH=LOW..HIGH`; raises UserError if it is neither."""
    path, values = split_assignment(text)
    if match := _INTERVAL.fullmatch(values):
        low, high = float(match[2]), float(match[3])
        is_integer = all(re.fullmatch(r"[-+]?\d+", end) for end in (match[2], match[3]))
        if not low < high or (match[1] and low <= 0):
            positive = " and both positive" if match[1] else ""
            raise UserError(f"--sweep {text}: expected LOW..HIGH with LOW < HIGH{positive}.")
        return Axis(path, Interval(low, high, bool(match[1]), is_integer))
    parts = split_values(values)
    if not all(parts):
        raise UserError(f"--sweep {text}: a value is empty; expected {path}=VALUE,VALUE,…")
    if twice := [part for i, part in enumerate(parts) if part in parts[:i]]:
        raise UserError(f"--sweep {text}: the value {twice[0]} is there twice.")
    return Axis(path, parts)


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Parses the settings of a sweep; raises UserError if one is there twice."""
    axes = [parse_axis(text) for text in texts]
    paths = [axis.path for axis in axes]
    if twice := [path for i, path in enumerate(paths) if path in paths[:i]]:
        raise UserError(f"--sweep: {twice[0]} is there twice; write all its values once.")
    return axes


def split_values(text: str) -> tuple[str, ...]:
    """Splits a text at its commas, except for those in brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)


def combinations(
    axes: Sequence[Axis], mode: Mode, number: int | None = None, seed: int = 0
) -> list[dict[str, str]]:
    """Returns path → value, as text, of each run.

    Args:
      axes: the settings, each once.
      mode: "grid": all combinations, of which the last setting changes fastest; "zip": the first
        values of all settings, then the second ones, and so on; "random": `number` draws.
      number: number of runs, for "random" only.
      seed: seed of the draws.

    Raises:
      UserError: the axes do not fit the mode.
    """
    check_number(mode, number)
    if number is not None:
        return _drawn(axes, number, random.Random(seed))
    lists: dict[str, tuple[str, ...]] = {}
    for axis in axes:
        if isinstance(axis.values, Interval):
            raise UserError(
                f"--sweep {axis.path}: an interval is for --sweep-mode random or optuna; expected "
                "values separated by commas."
            )
        lists[axis.path] = axis.values
    return rows(lists, mode)


def check_number(mode: Mode, number: int | None) -> None:
    """Raises UserError if a mode needs a number of runs, and has none, or the other way round."""
    if (mode in ("random", "optuna")) != (number is not None):
        given = "takes no --sweep-runs" if number is not None else "needs --sweep-runs N"
        raise UserError(f"--sweep-mode {mode} {given}.")
    if number is not None and number < 1:
        raise UserError(f"--sweep-runs is {number}; expected at least 1.")


def each_value(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Returns rows in which each value, and each end of an interval, occurs at least once."""
    values = {
        axis.path: [axis.values.as_text(end) for end in axis.values[:2]]
        if isinstance(axis.values, Interval)
        else axis.values
        for axis in axes
    }
    first = {path: each[0] for path, each in values.items()}
    return [first, *({**first, path: one} for path, each in values.items() for one in each[1:])]


def rows(values: Mapping[str, Sequence[T]], mode: Mode) -> list[dict[str, T]]:
    """Returns path → value for each run, for path → values and the mode "grid" or "zip".

    Raises UserError if, with "zip", the numbers of values differ.
    """
    counts = {path: len(each) for path, each in values.items()}
    found: Iterable[tuple[T, ...]]
    if mode == "grid":
        found = itertools.product(*values.values())
    elif len({*counts.values()}) > 1:
        shown = ", ".join(f"{path} {count}" for path, count in counts.items())
        raise UserError(f"sweep: with zip, all settings need as many values; found {shown}.")
    else:
        found = zip(*values.values(), strict=True)
    return [dict(zip(values, row, strict=True)) for row in found]


def _drawn(axes: Sequence[Axis], number: int, rng: random.Random) -> list[dict[str, str]]:
    """Draws runs that differ; fewer, if there are fewer combinations."""
    found: list[dict[str, str]] = []
    for _ in range(100 * number):
        row = {
            axis.path: axis.values.draw(rng)
            if isinstance(axis.values, Interval)
            else rng.choice(axis.values)
            for axis in axes
        }
        if row not in found:
            found.append(row)
        if len(found) == number:
            break
    return found
