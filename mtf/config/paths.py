"""Parses and formats paths in a config, such as `model.network.emb_dim` or `lengths['a.b']`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError, nearest

Path = tuple[Any, ...]
"""The steps from the root: field names, dict keys, and indices of lists and tuples."""

NOWHERE = object()
"""The result of `follow` for a path that does not exist."""

_STEP = re.compile(r"\.?(?:(?P<name>[^.\[\]]+)|\[(?P<key>[^\[\]]*)\])")
_ASSIGNMENT = re.compile(r"(?P<path>\+?(?:[^=\[\]]|\[[^\]]*\])+)=(?P<value>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A value or component of a config.

    Attributes:
      path: the path from the root.
      value: the value, or the class or function of a component; `fdl.NO_VALUE` if it is not set.
      is_component: whether this is a component.
      declared: the declared type.
      node: the component whose field contains this value, or the root if this is the root.
      field: the name of that field, or "" if this is the root.
      steps: the keys and indices from the field's value to this value; empty if they are the same.
    """

    path: Path
    value: Any
    is_component: bool
    declared: Any
    node: fdl.Buildable
    field: str
    steps: Path = ()


def parse_path(text: str) -> Path:
    """Parses `a.b.0`, `a[0]` or `a['some.key']`; raises a UserError if the path is invalid."""
    steps: list[Any] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (position == 0 and text[0] == "."):
            raise UserError(
                f"{text!r} is not a path. A valid path is, for example, model.network.emb_dim."
            )
        if match["name"] is not None:
            name = match["name"].strip()
            steps.append(int(name) if name.isdecimal() else name)
        else:
            try:
                steps.append(ast.literal_eval(match["key"]))
            except (ValueError, SyntaxError):
                steps.append(match["key"])
        position = match.end()
    if not steps:
        raise UserError("The path is empty. A valid path is, for example, model.network.emb_dim.")
    return tuple(steps)


def format_path(path: Sequence[Any]) -> str:
    """Formats a path as text that `parse_path` accepts. The root is formatted as "config"."""
    text = ""
    for step in path:
        plain = isinstance(step, int) or (
            isinstance(step, str) and re.fullmatch(r"[^.\[\]=\s+']+", step) and not step.isdecimal()
        )
        text += f".{step}" if plain else f"[{step!r}]"
    return text.removeprefix(".") or "config"


def follow(value: Any, path: Path) -> Any:
    """Returns the value at a path, or `NOWHERE` if the path does not exist."""
    for step in path:
        try:
            if isinstance(value, fdl.Buildable):
                value = getattr(value, step)
            else:
                value = value[step] if isinstance(value, dict | list | tuple) else NOWHERE
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            return NOWHERE
    return value


def split_assignment(text: str) -> tuple[str, str]:
    """Splits `PATH=VALUE` at the first `=` outside brackets; raises UserError if there is none."""
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} has no value. Write PATH=VALUE, for example train_steps=100.")
    return match["path"].strip(), match["value"].strip()


def nearest_paths(path: str, known: Iterable[str]) -> list[str]:
    """Returns up to three of the `known` paths that are similar to `path`, the most similar first.

    Paths are similar if their last steps are. Of the paths with the same last step, those that end
    in `path` come first, followed by those with the fewest steps.
    """
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    found: list[str] = []
    wanted = path.rpartition(".")[2]
    wanted = {"lr": "learning_rate"}.get(wanted, wanted)
    for last in nearest(wanted, by_last, cutoff=0.6):
        by_last[last].sort(key=lambda each: (not each.endswith(f".{path}"), each.count(".")))
        found += by_last[last]
    return found[:3]
