"""The words that may follow a command line. One that ends with a space is complete."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

import fiddle as fdl

from mtf.__main__ import COMMANDS
from mtf.completion import values
from mtf.config import lookup, overrides, tree
from mtf.config.paths import Path, follow, format_path, parse_path
from mtf.flags import is_recipe_name

_PROGRAMS = {"run": "mtf.run", "plan": "mtf.plan.__main__"}


def of_line(line: str, breaks: str) -> list[str]:
    """Returns the words that may follow an unfinished line of bash.

    They lack what stands before the last of the characters `breaks`, at which bash divides words.
    """
    *before, word = _split(line)
    quoted = line.endswith(f'"{word}') or line.endswith(f"'{word}")
    cut = 0 if quoted else 1 + max((word.rfind(each) for each in breaks), default=-1)
    return [each[cut:] for each in of_words([*before[1:], word])]


def _split(line: str) -> list[str]:
    """Splits an unfinished line at spaces outside quotes; the last word may be empty."""
    words, quote, escaped = [""], "", False
    for each in line:
        if escaped:
            words[-1] += each
            escaped = False
        elif each == "\\" and quote != "'":
            escaped = True
        elif each == quote:
            quote = ""
        elif not quote and each in "'\"":
            quote = each
        elif not quote and each == " ":
            if words[-1]:
                words.append("")
        else:
            words[-1] += each
    return words


def of_words(words: Sequence[str]) -> list[str]:
    """Returns what may stand instead of the last word; the first one is the command."""
    *before, word = words
    if not before:
        found = _finished([*COMMANDS, "--help", "--version"])
    elif before[0] == "completion":
        found = _finished(["bash", "zsh", "fish"])
    elif before[0] in _PROGRAMS:
        found = _of_recipe(before, word)
    else:
        found = []
    return [each for each in found if each.startswith(word) and each != word]


def _finished(words: Sequence[str]) -> list[str]:
    return [f"{word} " for word in words]


def _of_recipe(before: Sequence[str], word: str) -> list[str]:
    """Returns the words of a command with a recipe and --set, --unset and --apply."""
    parser = importlib.import_module(_PROGRAMS[before[0]]).make_parser()
    actions = parser._option_string_actions
    if word.startswith("-"):
        return _finished([*actions])
    option = next((each for each in reversed(before) if each.startswith("-")), "")
    is_open = before[-1] == option
    if option in ("--set", "--unset") or (is_open and option in ("--help", "-h", "--allow")):
        recipes = [each for each in before if is_recipe_name(each)]
        if not recipes:
            return _recipes(word)
        return _of_config(_config(recipes[0], before), option, word)
    if is_open and option == "--apply":
        return _finished([each.name for each in lookup.list_fiddlers()])
    if is_open and option in actions and actions[option].choices:
        return _finished([*actions[option].choices])
    if is_open and option in actions and actions[option].nargs != 0 and option != "--diff":
        return []  # A file, for example.
    return _recipes(word)


def _recipes(word: str) -> list[str]:
    """Returns all recipes, those of a file, or the arguments of a recipe."""
    name, bracket, _ = word.partition("(")
    if bracket:
        given = word[: max(word.rfind("("), word.rfind(",")) + 1]
        space = " " if given.endswith(",") else ""
        parameters = inspect.signature(lookup.find_recipe(name)).parameters
        return [f"{given}{space}{each}=" for each in parameters]
    if ":" in word:
        file = word.partition(":")[0]
        return _finished([f"{file}:{each}" for each in lookup.recipes_in_file(file)])
    return _finished([each.name for each in lookup.list_recipes()])


def _config(recipe: str, before: Sequence[str]) -> fdl.Config:
    """Returns the config of a recipe, with the assignments that are complete."""
    config = lookup.resolve(recipe)
    changes = [each for each in before if "=" in each and not is_recipe_name(each)]
    return overrides.try_overrides(config, changes)[0]


def _of_config(config: fdl.Config, option: str, word: str) -> list[str]:
    """Returns the paths one step further than `word`, or after `=` the values of a field."""
    path, equals, _ = word.partition("=")
    if equals and option == "--set":
        declared = overrides.find(config, parse_path(path.removeprefix("+")), word).declared
        return [f"{path}={value}" for value in values.of_type(declared)]
    above = parse_path(path.rpartition(".")[0]) if "." in path else ()
    end = "=" if option == "--set" else " "
    return [
        format_path((*above, step)) + ("." if _steps(config, (*above, step)) else end)
        for step in _steps(config, above)
    ]


def _steps(config: fdl.Config, path: Path) -> list[object]:
    """Returns the steps that may follow a path."""
    value = follow(config, path)
    if isinstance(value, fdl.Buildable):
        return [*tree.parameters(value)]
    if isinstance(value, dict):
        return [*value]
    has_parts = isinstance(value, list | tuple) and any(isinstance(v, fdl.Buildable) for v in value)
    return [*range(len(value))] if has_parts else []
