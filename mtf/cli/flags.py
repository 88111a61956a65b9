"""Parses the command-line arguments of `mtf.run`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mtf.cli.command import option_names

_DATA_FILES = (".csv", ".json", ".jsonl", ".tsv", ".txt")


class Flag(NamedTuple):
    """A command-line flag, with its name (including the dashes) and its value (None if missing)."""

    name: str
    value: str | None


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses options and recipes in any order, and collects unknown flags in `unknown`.

    `known` are all other arguments.
    """
    unknown, known = _split(arguments, option_names(parser))
    options = parser.parse_intermixed_args(known)
    options.unknown, options.known = unknown, known
    if not options.recipe:  # The recipe may follow --set, as in `--set a=1 RECIPE`.
        after_set = [text for kind, text in options.overrides if kind == "set"]
        options.recipe = [text for text in after_set if is_recipe_name(text)]
        options.overrides = [each for each in options.overrides if each[1] not in options.recipe]
    if options.help and not options.recipe and options.from_dir is None:  # as in `--help RECIPE`
        options.recipe, options.help = [options.help], ""
    return options


def _split(arguments: Sequence[str], options: Collection[str]) -> tuple[list[Flag], list[str]]:
    """Separates flags that are not in `options`, and their values, from the other arguments.

    A word that looks like a recipe's name is taken as the value of a flag only if `arguments`
    contains another such word.
    """
    num_recipes = sum(map(is_recipe_name, arguments))
    flags: list[Flag] = []
    rest: list[str] = []
    left = [*arguments]
    while left:
        text = left.pop(0)
        name, equals, value = text.partition("=")
        if not name.startswith("--") or name in options or name == "--":
            rest.append(text)
            continue
        may_follow = left and not left[0].startswith("--")
        if not equals and may_follow and (num_recipes > 1 or not is_recipe_name(left[0])):
            equals, value = " ", left.pop(0)
        flags.append(Flag(name, value if equals else None))
    return flags, rest


def is_recipe_name(text: str) -> bool:
    """Returns whether a text looks like a recipe's name, such as `a.b`, `a.b(c=1)` or `a.py:b`."""
    name = text.partition("(")[0]
    dotted = "." in name and all(part.isidentifier() for part in name.split("."))
    dotted = dotted and not name.endswith(_DATA_FILES)
    return "=" not in name and (":" in name or dotted)


def only_shows(options: argparse.Namespace) -> bool:
    """Returns whether the options show help or a config instead of running a job."""
    return bool(options.print or options.diff or options.help is not None)
