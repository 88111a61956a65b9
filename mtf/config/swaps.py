"""What is lost when `--set PATH=@builder(…)` replaces a component whose fields a recipe had set."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from typing import Any

import fiddle as fdl

from mtf.config import calls, lookup, provenance, tree, values
from mtf.config.paths import Path, format_path, parse_path, split_assignment

_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Swap:
    """A component that is replaced.

    Attributes:
      path: where.
      old: the component that was there.
      call: what replaces it, as written: "@builder(…)".
    """

    path: Path
    old: fdl.Buildable
    call: str


def find(config: fdl.Config, text: str) -> Swap | None:
    """Returns the swap that `PATH=@builder(…)` is about to make, if it replaces a component."""
    path_text, call = split_assignment(text)
    if not call.startswith("@"):
        return None
    path = parse_path(path_text.removeprefix("+"))
    old = follow(config, path)
    return Swap(path, old, call) if isinstance(old, fdl.Buildable) else None


def follow(config: Any, path: Path) -> Any:
    """What is at the end of a path; a value that is not a component where it leads nowhere."""
    for step in path:
        try:
            config = getattr(config, step) if isinstance(config, fdl.Buildable) else config[step]
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            return _ABSENT
    return config


def _set_later(swap: Swap, config: fdl.Config, leaf: tree.Leaf) -> bool:
    """Returns whether an override after the swap has set the new component's field."""
    holder = follow(config, (*swap.path, *leaf.path[: leaf.field_depth - 1]))
    where = provenance.of_field(holder, leaf.field)
    return where not in ("default", provenance.of_field(holder, "__fn_or_cls__"))


def warning(swap: Swap, config: fdl.Config) -> str | None:
    """Says which values the swap has dropped, and how to keep them; None: none.

    These are values other than the default that were set on the old component, for which the new
    one has a field that neither the call nor a later override sets, and that has now another
    value. What the old component's own builder chose is not among them, unless the new builder
    has an argument for it.

    Args:
      swap: the swap.
      config: with all overrides applied.
    """
    name, arguments = values.split_call(swap.call[1:])
    given = set(calls.keywords(arguments, name))
    accepted = set(inspect.signature(lookup.find(name, "builder")).parameters)
    lost = []
    for leaf in tree.leaves(swap.old):
        steps = leaf.path[leaf.field_depth :]
        default = tree.parameters(leaf.node).get(leaf.field)
        new = follow(config, (*swap.path, *leaf.path))
        if (
            leaf.is_component
            or default is None
            or default.default is default.empty
            or given & {leaf.field, *map(str, leaf.path[:1])}
            or provenance.is_default(leaf)
            or (not steps and leaf.value == default.default)
            or new is _ABSENT
            or isinstance(new, fdl.Buildable)
            or new == leaf.value
            or _set_later(swap, config, leaf)
            or (leaf.field not in accepted and provenance.is_of_builder(leaf.node, leaf.field))
        ):
            continue
        lost.append((format_path((*swap.path, *leaf.path)), leaf.value, new))
    if not lost:
        return None
    dropped = ", ".join(f"{path}={value!r} (now {new!r})" for path, value, new in lost)
    keep = " ".join(
        shlex.quote(f"{path}={value if isinstance(value, str) else repr(value)}")
        for path, value, _ in lost
    )
    return (
        f"{format_path(swap.path)}={swap.call} replaces the whole component, and with it drops "
        f"{dropped}. To keep: --set {keep}"
    )
