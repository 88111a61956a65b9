"""A config as text: flat, with its history, and as a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fiddle as fdl

from mtf.config import provenance, tree, types
from mtf.config.paths import format_path
from mtf.errors import UserError


def format_value(leaf: tree.Leaf) -> str:
    """Writes a leaf's value as `--set` reads it: a literal, or `@class` for a component."""
    if leaf.is_component or isinstance(leaf.value, type) or callable(leaf.value):
        return f"@{types.qualified_name(leaf.value)}"
    return repr(leaf.value)


def _is_told(leaf: tree.Leaf) -> bool:
    """Returns whether the leaf says something: a value, or a component where there is a choice."""
    return not leaf.is_component or (bool(leaf.path) and leaf.declared is not leaf.value)


def as_flat_text(config: fdl.Config) -> str:
    """Returns `path = value`, a line for every value, defaults included.

    A component has a line of its own where its declared type leaves a choice.
    """
    lines = [
        f"{format_path(leaf.path)} = {format_value(leaf)}\n"
        for leaf in tree.leaves(tree.complete(config))
        if _is_told(leaf)
    ]
    return "".join(lines)


def as_history_text(config: fdl.Config) -> str:
    """Returns the flat text with where each value came from."""
    rows = [
        (f"{format_path(leaf.path)} = {format_value(leaf)}", provenance.of_leaf(leaf))
        for leaf in tree.leaves(tree.complete(config))
        if _is_told(leaf)
    ]
    width = min(max((len(left) for left, _ in rows), default=0), 60)
    return "".join(f"{left:<{width}}  # {origin}\n" for left, origin in rows)


def write_graph(config: fdl.Config, file: Path) -> None:
    """Draws the config: .svg, .png or .pdf through Graphviz's `dot`; .dot and .gv need nothing.

    Raises:
      UserError: `dot` is not installed, or the file's ending is unknown.
    """
    suffix = file.suffix.lower().removeprefix(".")
    if suffix not in ("svg", "png", "pdf", "dot", "gv"):
        raise UserError(f"--graph {file}: the name must end in .svg, .png, .pdf, .dot or .gv.")
    if not file.parent.is_dir():
        raise UserError(f"--graph {file}: there is no folder {file.parent}.")
    # Imported here: both are slow, and only this needs them.
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
