"""Formats configs as flat text, with or without their history, and as diffs.

Fiddle's functions for these formats show neither defaults nor the paths that `--set` accepts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import fiddle as fdl

from mtf.config import paths, provenance, tree, types
from mtf.config.paths import format_path


def shown(value: Any) -> str:
    """Returns a value in the syntax of `--set`, as a literal or, for a component, as `@class`."""
    if isinstance(value, fdl.Buildable):
        value = fdl.get_callable(value)
    return f"@{types.qualified_name(value)}" if callable(value) else repr(value)


def _lines(config: fdl.Config) -> list[tuple[str, paths.Leaf]]:
    """Returns a pair ("path = value", leaf) for each value.

    A component is included only if its class differs from the declared type of its field.
    """
    return [
        (f"{format_path(leaf.path)} = {shown(leaf.value)}", leaf)
        for leaf in tree.leaves(tree.complete(config))
        if not leaf.is_component or (leaf.path and leaf.declared is not leaf.value)
    ]


def as_flat_text(config: fdl.Config, *, defaults: bool = True) -> str:
    """Returns a line `path = value` for each value, in the order of the fields.

    If `defaults` is false, values that equal their defaults are omitted.
    """
    lines = (line for line, leaf in _lines(config) if defaults or not _is_default(leaf))
    return "".join(f"{line}\n" for line in lines)


def _is_default(leaf: paths.Leaf) -> bool:
    """Returns whether a value equals the default of its field."""
    if not leaf.path:
        return False
    default = paths.follow(_defaults(fdl.get_callable(leaf.node)), (leaf.field, *leaf.steps))
    is_component = isinstance(default, fdl.Buildable)
    value = fdl.get_callable(default) if is_component else default
    return _comparable(
        dataclasses.replace(leaf, value=value, is_component=is_component)
    ) == _comparable(leaf)


@functools.cache
def _defaults(target: Any) -> fdl.Config:
    """Returns a config of a class or function in which all values are defaults."""
    return tree.complete(fdl.Config(target))


def flat_values(config: fdl.Config) -> dict[str, Any]:
    """Returns a dict mapping the paths in `as_flat_text` to values that JSON supports.

    Tuples become lists, classes become "@NAME", and infinity and NaN become strings.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value if isinstance(value, str | int | float | None) else shown(value)

    return {format_path(leaf.path): plain(leaf.value) for _, leaf in _lines(config)}


def as_history_text(config: fdl.Config) -> str:
    """Returns the lines of `as_flat_text`, with comments that show where each value was set."""
    rows = [(line, provenance.of_leaf(leaf)) for line, leaf in _lines(config)]
    width = min(max((len(line) for line, _ in rows), default=0), 60)
    return "".join(f"{line:<{width}}  # {origin}\n" for line, origin in rows)


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference between two configs; `old` or `new` is None if that config lacks the path."""

    path: paths.Path
    old: str | None
    new: str | None

    def __str__(self) -> str:
        where = format_path(self.path)
        if self.old is None:
            return f"{where}: added, {self.new}"
        if self.new is None:
            return f"{where}: removed, was {self.old}"
        return f"{where}: {self.old} → {self.new}"


def diff(old: fdl.Config, new: fdl.Config) -> list[Change]:
    """Returns the differences between two configs in the order of the fields."""
    before, after = (
        {leaf.path: leaf for leaf in tree.leaves(tree.complete(each))} for each in (old, new)
    )
    changes: list[Change] = []
    for path in {**after, **before}:
        a, b = before.get(path), after.get(path)
        if a is None or b is None or _comparable(a) != _comparable(b):
            changes.append(
                Change(path, shown(a.value) if a else None, shown(b.value) if b else None)
            )
    return changes


def _comparable(leaf: paths.Leaf) -> Any:
    """Returns a key for comparing leaves; 1 and True have different keys, two NaNs the same key."""

    def typed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(typed, value))
        if isinstance(value, bool):
            return (bool, value)
        return "nan" if value != value else value

    return leaf.is_component, typed(leaf.value)
