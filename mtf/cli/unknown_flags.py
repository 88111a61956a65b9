"""Suggests replacements for flags that `mtf.run` does not have."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Sequence
from typing import Any

import fiddle as fdl

from mtf.base.errors import suggestion
from mtf.cli.command import option_names, quoted
from mtf.cli.flags import Flag
from mtf.config import tree
from mtf.config.paths import nearest_paths

_GIN = (
    " mtf.run does not read gin; python -m mtf gin FILE.gin --output my_recipe.py translates gin "
    "files and gin flags to a recipe."
)


def refusals(
    flags: Sequence[Flag], parser: argparse.ArgumentParser, config: fdl.Config | None = None
) -> list[str]:
    """Returns, for each unknown flag, a message that says what to write instead."""
    if not flags:
        return []
    paths = [] if config is None else tree.known_paths(tree.complete(config))
    options = option_names(parser)
    return [f"There is no option {flag.name}.{_hint(flag, options, paths)}" for flag in flags]


def _hint(flag: Flag, options: Collection[str], paths: Sequence[str]) -> str:
    (name, value), is_gin = flag, flag.name.startswith("--gin")
    if name in ("--gin_param", "--gin_bindings"):
        name, _, value = map(str.strip, (value or "").partition("="))
    wanted = name.lstrip("-").replace("-", "_")
    if is_gin:  # Parameters and macros of T5X, such as TRAIN_STEPS, have the names of mtf's fields.
        wanted = name.rpartition(".")[2].lower()
    same = [path for path in paths if f".{path}".endswith(f".{wanted}")]
    if wanted in same or len(same) == 1:
        return f" Write {_assignment(wanted if wanted in same else same[0], value)}"
    if is_gin:
        return _GIN
    near = difflib.get_close_matches(name, options, cutoff=0.75)
    if same or not near:
        near = [_assignment(path, value) for path in same[:3] or nearest_paths(wanted, paths)]
    return suggestion(near) or " --help lists the options."


def _assignment(path: str, value: Any) -> str:
    shown = "VALUE" if value is None else value
    return f"--set {quoted(f'{path}={shown}')}"
