"""Parses the arguments of `mtf.run`, and says how flags that it lacks are written here."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mtf.errors import suggestion

if TYPE_CHECKING:
    import fiddle as fdl

_GIN_FILES = "mtf.run reads no gin files; translate them to a recipe: python -m mtf.gin"


class Flag(NamedTuple):
    """A flag with its dashes; `value` is None if it has none."""

    name: str
    value: str | None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses options and recipes in any order; `unknown` has the flags that the parser lacks."""
    unknown, known = _split(arguments, parser._option_string_actions)
    options = parser.parse_intermixed_args(known)
    options.unknown = unknown
    if not options.recipe:  # It may follow --set, as in `--set a=1 RECIPE`.
        after_set = [text for kind, text in options.overrides if kind == "set"]
        options.recipe = [text for text in after_set if is_recipe_name(text)]
        options.overrides = [each for each in options.overrides if each[1] not in options.recipe]
    if options.help and not options.recipe and options.from_dir is None:  # `--help RECIPE`
        options.recipe, options.help = [options.help], ""
    return options


def _split(arguments: Sequence[str], options: Collection[str]) -> tuple[list[Flag], list[str]]:
    """Splits off the flags that are not `options`, with the values that follow them.

    A recipe is not taken for a value, unless there is another recipe.
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
    """Returns whether a text has the form of a recipe's name: `a.b`, `a.b(c=1)` or `a.py:b`."""
    name = text.partition("(")[0]
    dotted = "." in name and all(part.isidentifier() for part in name.split("."))
    return "=" not in name and (":" in name or dotted)


def refusals(
    flags: Sequence[Flag], parser: argparse.ArgumentParser, config: fdl.Config | None = None
) -> list[str]:
    """Returns why each flag is refused, and how to write it for the config of the recipe."""
    if not flags:
        return []
    # Imported here because --help does not need Fiddle.
    import fiddle as fdl

    from mtf.config import tree

    job = "" if config is None else fdl.get_callable(config).__name__
    paths = [] if config is None else tree.known_paths(tree.complete(config))
    options = parser._option_string_actions
    return [
        f"{flag}: {_gin(flag, job, paths)}"
        if flag.name.startswith("--gin")
        else f"There is no option {flag.name}.{_hint(flag, options, paths)}"
        for flag in flags
    ]


def _hint(flag: Flag, options: Collection[str], paths: Sequence[str]) -> str:
    from mtf.config.paths import nearest_paths

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
    """Returns how to write a flag of T5X's or of Mesh TensorFlow's gin."""
    from mtf.gin.names import assignment_of

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
    return f"{reason}; python -m mtf.gin translates gin files and such flags to a recipe."
