"""Suggests replacements for flags that `mtf.run` does not have."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Collection, Sequence
from typing import Any

import fiddle as fdl

from mtf.base.errors import suggestion
from mtf.cli.command import option_names
from mtf.cli.flags import Flag
from mtf.config import tree
from mtf.config.paths import nearest_paths

_GIN_FILES = "mtf.run does not read gin files; translate them to a recipe with python -m mtf gin"


def refusals(
    flags: Sequence[Flag], parser: argparse.ArgumentParser, config: fdl.Config | None = None
) -> list[str]:
    """Returns, for each unknown flag, a message that says what to write instead."""
    if not flags:
        return []
    job = "" if config is None else fdl.get_callable(config).__name__
    paths = [] if config is None else tree.known_paths(tree.complete(config))
    options = option_names(parser)
    return [
        f"{flag}: {_gin(flag, job, paths)}"
        if flag.name.startswith("--gin")
        else f"There is no option {flag.name}.{_hint(flag, options, paths)}"
        for flag in flags
    ]


def _hint(flag: Flag, options: Collection[str], paths: Sequence[str]) -> str:
    wanted = flag.name.lstrip("-").replace("-", "_")
    same = [path for path in paths if f".{path}".endswith(f".{wanted}")]
    if wanted in same or len(same) == 1:
        return f" Write {_assignment(wanted if wanted in same else same[0], flag.value)}"
    near = difflib.get_close_matches(flag.name, options, cutoff=0.75)
    if same or not near:
        near = [_assignment(path, flag.value) for path in same[:3] or nearest_paths(wanted, paths)]
    return suggestion(near) or " --help lists the options."


def _assignment(path: str, value: Any) -> str:
    text = f"{path}={'VALUE' if value is None else value}"
    in_double_quotes = "'" in text and not set('"$`\\!') & set(text)
    return f'--set "{text}"' if in_double_quotes else f"--set {shlex.quote(text)}"


def _gin(flag: Flag, job: str, paths: Sequence[str]) -> str:
    """Returns what to write instead of a gin flag of T5X or Mesh TensorFlow."""
    from mtf.cli.gin.names import assignment_of  # Slow, because it loads all gin settings.

    if flag.name == "--gin_file":
        return f"{_GIN_FILES} {shlex.quote(flag.value or 'FILE.gin')} --output my_recipe.py"
    text = f"{flag.name}={flag.value}".removeprefix("--gin.")
    if flag.name in ("--gin_param", "--gin_bindings"):
        text = flag.value or ""
    elif not flag.name.startswith("--gin."):
        return f"{_GIN_FILES} FILE.gin --output my_recipe.py"
    binding, _, value = map(str.strip, text.partition("="))
    found = assignment_of(binding, value, job, paths)
    if isinstance(found, tuple):
        path, converted = found
        shown = converted if isinstance(converted, str) else repr(converted)
        return f"write {_assignment(path, shown)}"
    reason = f"mtf has no setting for it ({found})" if found else "mtf.run has no gin flags"
    return f"{reason}; python -m mtf gin translates gin files and gin flags to a recipe."
