"""The values of a sweep: `PATH=V1,V2`, and which of them a run has."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from mtf.config.paths import split_assignment
from mtf.errors import UserError

T = TypeVar("T")

Mode = Literal["grid", "zip", "random"]

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
        """Returns a value as text, with four significant digits unless it is an integer."""
        if self.is_integer and not self.is_log:
            return str(rng.randint(int(self.low), int(self.high)))
        low, high = (math.log(x) if self.is_log else x for x in (self.low, self.high))
        value = rng.uniform(low, high)
        value = math.exp(value) if self.is_log else value
        return str(round(value)) if self.is_integer else f"{value:.4g}"


class Axis(NamedTuple):
    """A setting and its values: texts as for `--set`, or an interval."""

    path: str
    values: tuple[str, ...] | Interval


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
    paths = [axis.path for axis in axes]
    if twice := [path for i, path in enumerate(paths) if path in paths[:i]]:
        raise UserError(f"--sweep: {twice[0]} is there twice; write all its values once.")
    if (mode == "random") != (number is not None):
        given = "needs --sweep-runs N" if mode == "random" else "takes no --sweep-runs"
        raise UserError(f"--sweep-mode {mode} {given}.")
    if number is not None:
        if number < 1:
            raise UserError(f"--sweep-runs is {number}; expected at least 1.")
        return _drawn(axes, number, random.Random(seed))
    lists: dict[str, tuple[str, ...]] = {}
    for axis in axes:
        if isinstance(axis.values, Interval):
            raise UserError(
                f"--sweep {axis.path}: an interval is for --sweep-mode random; expected values "
                "separated by commas."
            )
        lists[axis.path] = axis.values
    return rows(lists, mode)


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
