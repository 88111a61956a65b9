"""Paths into a config, such as `model.network.mlp_activations.0` or `data.lengths['a.b']`."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import fiddle as fdl

from mtf.errors import UserError

Path = tuple[Any, ...]
"""Steps from the root: names of fields, keys of dicts, indices of lists and tuples."""

NOWHERE = object()
"""The result of `follow` for a path that does not exist."""

_STEP = re.compile(r"\.?(?:(?P<name>[^.\[\]]+)|\[(?P<key>[^\[\]]*)\])")
_ASSIGNMENT = re.compile(r"(?P<path>\+?(?:[^=\[\]]|\[[^\]]*\])+)=(?P<value>.*)", re.DOTALL)


def parse_path(text: str) -> Path:
    """Parses `a.b.0`, `a[0]` or `a['some.key']`; raises a UserError if it is not a path."""
    steps: list[Any] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (position == 0 and text[0] == "."):
            raise UserError(f"{text!r} is not a path; write, for example, model.network.emb_dim.")
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
        raise UserError("The path is missing; write, for example, model.network.emb_dim.")
    return tuple(steps)


def format_path(path: Sequence[Any]) -> str:
    """Formats a path so that `parse_path` parses it; the root is "config"."""
    text = ""
    for step in path:
        plain = isinstance(step, int) or (
            isinstance(step, str) and re.fullmatch(r"[^.\[\]=\s+']+", step) and not step.isdecimal()
        )
        text += f".{step}" if plain else f"[{step!r}]"
    return text.removeprefix(".") or "config"


def follow(value: Any, path: Path) -> Any:
    """Returns the value at a path, or `NOWHERE`."""
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
    """Splits `PATH=VALUE` at the first `=` outside brackets; raises a UserError without one."""
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} has no value. Write PATH=VALUE, for example train_steps=100.")
    return match["path"].strip(), match["value"].strip()


def nearest_paths(path: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Returns up to `n` of the `known` paths that `path` may have meant, best first.

    Paths that end in `path` come first, then those with a similar last step.
    """
    last = path.rpartition(".")[2]
    scored: list[tuple[float, str]] = []
    for candidate in known:
        candidate_last = candidate.rpartition(".")[2]
        if candidate.endswith("." + path):
            score = 3.0
        elif candidate_last == last:
            score = 1.0 + _similarity(path, candidate)
        else:
            similar = _similarity(last, candidate_last)
            score = 0.7 * similar + 0.3 * _similarity(path, candidate) if similar >= 0.6 else 0.0
        if score >= 0.5:
            scored.append((score, candidate))
    scored.sort(key=lambda item: (-item[0], item[1].count(".")))
    return [candidate for _, candidate in scored[:n]]


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
