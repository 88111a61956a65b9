"""Checks the values of settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mtf.base.errors import UserError

# A description of the condition, and a function that returns whether a value meets it.
Condition = tuple[str, Callable[[Any], bool]]
RATE: Condition = ("in [0, 1)", lambda x: 0 <= x < 1)
POSITIVE: Condition = ("positive", lambda x: 0 < x < math.inf)
AT_LEAST_ONE: Condition = ("at least 1", lambda n: n >= 1)
AT_LEAST_ZERO: Condition = ("at least 0", lambda n: n >= 0)
FRACTION: Condition = ("greater than 0 and less than 1", lambda x: 0 < x < 1)
NOT_NEGATIVE: Condition = ("finite and not negative", lambda x: 0 <= x < math.inf)


def one_of(*options: str) -> Condition:
    """Returns a condition that is met if the value is one of the options."""
    return f"one of {', '.join(map(repr, options))}", options.__contains__


def check_fields(
    settings: object, condition: Condition, *fields: str, optional: bool = False
) -> None:
    """Raises a UserError if a field does not meet the condition; `optional` also allows None."""
    expected, holds = condition
    for field in fields:
        value = getattr(settings, field)
        if not (optional and value is None) and not holds(value):
            raise UserError(f"{field} must be {expected}{' or None' * optional}, not {value!r}.")


def check_patterns(field: str, patterns: Iterable[str]) -> None:
    """Raises a UserError if a pattern in a field is not a valid regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"{field}: {pattern!r} is not a valid regular expression: {error}."
            ) from error


def check_matches(setting: str, what: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises a UserError if a pattern matches no full name; `what` describes what has names."""

    def matches(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in names)

    unused = [pattern for pattern in patterns if not matches(pattern)]
    if unused:
        first = unused[0]
        tried = (f"{first}/.*", f".*/{first}", f".*/{first}/.*", f".*{first}.*")
        near = next((f" Did you mean {each!r}?" for each in tried if matches(each)), "")
        raise UserError(
            f"{setting}: no {what} matches {', '.join(map(repr, unused))}. A pattern must match a "
            f"full name, such as {names[0]!r}. Each layer has its own names, even if layers are "
            f"scanned.{near}"
        )
