"""Defines errors that a command prints as one message, and suggests similar names."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator

from mtf.storage import AnyPath
from mtf.storage.errors import StorageError


class UserError(ValueError):
    """Raised for an error in the user's input, which the message explains (exit status 2)."""


class NotCheckedError(UserError):
    """Raised if a dry run cannot check an input, for example data on a server."""


class RunError(RuntimeError):
    """Raised if a command fails for a known reason other than its input (exit status 1)."""


class StoreFailedError(RunError):
    """Raised if the store of a run directory fails, so that nothing more can be written there."""


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns a list of an error, its causes, and the errors in exception groups."""
    found = [error]
    for each in found:
        inside = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        causes = (each.__cause__, each.__context__, *inside)
        found += [cause for cause in causes if cause is not None and cause not in found]
    return found


@contextlib.contextmanager
def conversion_as_user_errors() -> Iterator[None]:
    """Converts a ConversionError or StorageError to a UserError; can be used as a decorator."""
    from conversion import ConversionError

    try:
        yield
    except (ConversionError, StorageError) as error:
        raise UserError(str(error)) from error


def nearest(name: str, options: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """Returns up to three of the `options` that are similar to `name`, the most similar first.

    Leaves out options that are clearly less similar than the first. `cutoff`, from 0 to 1, is the
    least similarity.
    """
    found = difflib.get_close_matches(name, list(options), cutoff=cutoff)
    similar = [difflib.SequenceMatcher(None, each, name).ratio() for each in found]
    return [each for each, ratio in zip(found, similar, strict=True) if ratio > similar[0] - 0.25]


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Returns a sentence that suggests the options similar to `name`, or "" if there are none."""
    return suggestion(nearest(name, options))


def did_you_mean_file(path: AnyPath) -> str:
    """Suggests files and directories beside `path` that have similar names."""
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    return did_you_mean(path.name, (each.name for each in siblings))


def suggestion(names: Iterable[str]) -> str:
    """Returns `" Did you mean a, b or c?"`, or "" if there are no names."""
    *others, last = [*names] or [""]
    shown = f"{', '.join(others)} or {last}" if others else last
    return f" Did you mean {shown}?" if shown else ""


_HELD_OUT = ("validation", "valid", "dev", "test", "eval")


def did_you_mean_split(split: str, splits: Iterable[str]) -> str:
    """Suggests similar splits, else other held-out ones, else the only split, else ""."""
    options = list(splits)
    found = nearest(split, options)
    if not found and split in _HELD_OUT:
        found = [name for name in _HELD_OUT if name in options]
    if not found and len(options) == 1:
        found = options
    return suggestion(found)


def nearest_multiples(n: int, divisor: int) -> str:
    """Returns the positive multiples of `divisor` nearest to `n` as text, such as "4 or 8"."""
    below = n // divisor * divisor
    return " or ".join(str(multiple) for multiple in (below, below + divisor) if multiple)
