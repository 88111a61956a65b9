"""The errors that are printed as one message: bad input (exit status 2), a failed run (1)."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class UserError(ValueError):
    """Bad input, named clearly: what, where, what was expected, the nearest alternative."""


class RunError(RuntimeError):
    """A run failed in a way that one message explains: what, at which step, what to do."""


@contextlib.contextmanager
def conversion_as_user_errors() -> Iterator[None]:
    """Raises a `ConversionError` as a `UserError`: a context manager, or a decorator."""
    from conversion import ConversionError

    try:
        yield
    except ConversionError as error:
        raise UserError(str(error)) from error


def nearest(name: str, options: Iterable[str], n: int = 3) -> list[str]:
    """Returns up to `n` of `options` that look most like `name`, best first."""
    return difflib.get_close_matches(name, list(options), n=n, cutoff=0.5)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Returns `" Did you mean a, b?"`, or an empty string where nothing is near."""
    return suggestion(nearest(name, options))


def suggestion(names: Iterable[str]) -> str:
    """Returns `" Did you mean a, b?"`, or an empty string where there are no names."""
    shown = ", ".join(names)
    return f" Did you mean {shown}?" if shown else ""


_HELD_OUT = ("validation", "valid", "dev", "test", "eval")


def did_you_mean_split(split: str, splits: Iterable[str]) -> str:
    """As `did_you_mean`, of splits: if no name is near, other held-out ones, or the only one."""
    options = list(splits)
    found = nearest(split, options)
    if not found and split in _HELD_OUT:
        found = [name for name in _HELD_OUT if name in options]
    if not found and len(options) == 1:
        found = options
    return suggestion(found)


def check_at_least_one(settings: object, *fields: str, optional: bool = False) -> None:
    """Refuses settings of which one of these fields is less than 1 (or, if optional, not None)."""
    for field in fields:
        value = getattr(settings, field)
        if not (optional and value is None) and value < 1:
            raise UserError(f"{field} must be at least 1{' or None' * optional}, not {value}.")


def nearest_multiples(n: int, divisor: int) -> str:
    """Returns the positive multiples next to `n`, as in "4 or 8"."""
    below = n // divisor * divisor
    return " or ".join(str(multiple) for multiple in (below, below + divisor) if multiple)
