"""Shows a config as flat text, with its history, as a diff or as a graph.

Fiddle's printing and diffing show neither defaults nor the paths that `--set` accepts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import fiddle as fdl

from mtf.config import paths, provenance, tree, types
from mtf.config.paths import format_path
from mtf.errors import UserError


def shown(value: Any) -> str:
    """Returns a value as `--set` accepts it: a literal, or `@class` for a component."""
    if isinstance(value, fdl.Buildable):
        value = fdl.get_callable(value)
    return f"@{types.qualified_name(value)}" if callable(value) else repr(value)


def _lines(config: fdl.Config) -> list[tuple[str, tree.Leaf]]:
    """Returns `path = value` for each leaf; for a component only if its type allows others."""
    return [
        (f"{format_path(leaf.path)} = {shown(leaf.value)}", leaf)
        for leaf in tree.leaves(tree.complete(config))
        if not leaf.is_component or (leaf.path and leaf.declared is not leaf.value)
    ]


def as_flat_text(config: fdl.Config) -> str:
    """Returns a line `path = value` for every value and default."""
    return "".join(f"{line}\n" for line, _ in _lines(config))


def flat_values(config: fdl.Config) -> dict[str, Any]:
    """Returns path → value for the lines of the flat text; lists for tuples, "@NAME" for classes.

    All values can be written as JSON.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value if isinstance(value, str | int | float | None) else shown(value)

    return {format_path(leaf.path): plain(leaf.value) for _, leaf in _lines(config)}


def as_history_text(config: fdl.Config) -> str:
    """Returns the flat text, with where each value was set."""
    rows = [(line, provenance.of_leaf(leaf)) for line, leaf in _lines(config)]
    width = min(max((len(line) for line, _ in rows), default=0), 60)
    return "".join(f"{line:<{width}}  # {origin}\n" for line, origin in rows)


def as_json(config: fdl.Buildable, *, defaults: bool = True) -> str:
    """Returns the config as nested JSON in the order of the flat text, with or without `defaults`.

    The key "@" has the class or function of a component, "@partial" that of a `fdl.Partial`. Only
    what `serialize.dump_json` returns can be loaded again.
    """
    plain = _plain(tree.complete(config) if defaults else config, defaults)
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any, defaults: bool) -> Any:
    """Returns components as dicts, and values that JSON lacks as texts."""
    if isinstance(value, fdl.Buildable):
        key = "@partial" if isinstance(value, fdl.Partial) else "@"
        arguments = fdl.ordered_arguments(value, include_defaults=defaults)
        values = {str(name): _plain(each, defaults) for name, each in arguments.items()}
        return {key: types.qualified_name(fdl.get_callable(value)), **values}
    if isinstance(value, dict):
        return {str(key): _plain(each, defaults) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, defaults) for each in value]
    is_plain = value is None or type(value) in (bool, int, str)
    if is_plain or (isinstance(value, float) and math.isfinite(value)):
        return value
    return shown(value)


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference; `old` or `new` is None if only one of the configs has the path."""

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
    """Returns the changed values and components, in the order of the fields."""
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


def _comparable(leaf: tree.Leaf) -> Any:
    """Returns a value to compare, in which 1 and True differ and NaN equals NaN."""

    def typed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(typed, value))
        if isinstance(value, bool):
            return (bool, value)
        return "nan" if value != value else value

    return leaf.is_component, typed(leaf.value)


def write_graph(config: fdl.Config, file: Path) -> None:
    """Draws the config; .svg, .png and .pdf need Graphviz's program `dot`."""
    suffix = file.suffix.lower().removeprefix(".")
    if suffix not in ("svg", "png", "pdf", "dot", "gv"):
        raise UserError(f"--graph {file}: the file name must end in .svg, .png, .pdf, .dot or .gv.")
    if not file.parent.is_dir():
        raise UserError(f"--graph {file}: the directory {file.parent} does not exist.")
    # Imported here because the imports are slow.
    import graphviz  # type: ignore[import-untyped]
    from fiddle import graphviz as fiddle_graphviz

    graph: Any = fiddle_graphviz.render(config, max_str_length=80)
    if suffix in ("dot", "gv"):
        file.write_text(graph.source, encoding="utf-8")
        return
    try:
        drawing = graph.pipe(format=suffix)
    except graphviz.ExecutableNotFound:
        raise UserError(
            f"--graph {file} needs Graphviz's program `dot`, which is not installed "
            "(`apt install graphviz` or `conda install graphviz`). "
            f"--graph {file.with_suffix('.dot')} works without it."
        ) from None
    file.write_bytes(drawing)
