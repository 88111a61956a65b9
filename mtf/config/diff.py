"""What differs between two configs."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl

from mtf.config import tree
from mtf.config.paths import Path, format_path
from mtf.config.show import format_value


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference; `old` or `new` is None where the path is in one of the configs only."""

    path: Path
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
    """Returns every path whose value (or component) differs, in the order of the fields."""
    before, after = _by_path(old), _by_path(new)
    changes: list[Change] = []
    for path in [*after, *(path for path in before if path not in after)]:
        a, b = before.get(path), after.get(path)
        if a is not None and b is not None and _same(a, b):
            continue
        shown_a = None if a is None else format_value(a)
        shown_b = None if b is None else format_value(b)
        changes.append(Change(path, shown_a, shown_b))
    return changes


def _by_path(config: fdl.Config) -> dict[Path, tree.Leaf]:
    return {leaf.path: leaf for leaf in tree.leaves(tree.complete(config))}


def _same(a: tree.Leaf, b: tree.Leaf) -> bool:
    if a.is_component != b.is_component:
        return False
    return _typed(a.value) == _typed(b.value)


def _typed(value: Any) -> Any:
    """Makes 1 and True differ, and nan equal to itself."""
    if isinstance(value, list | tuple):
        return tuple(_typed(item) for item in value)
    if isinstance(value, bool):
        return (bool, value)
    return "nan" if value != value else value
