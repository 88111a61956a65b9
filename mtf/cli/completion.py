"""Prints a shell's completion script for `mtf` (`python -m mtf completion SHELL`)."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import argcomplete

from mtf.cli.command import exit_status, new_parser
from mtf.cli.flags import is_recipe_name

_EPILOG = """\
examples:
  source <(mtf completion bash)         # in ~/.bashrc
  source <(mtf completion zsh)          # in ~/.zshrc, after compinit
  mtf completion fish > ~/.config/fish/completions/mtf.fish

The script completes commands, options, recipes, fiddlers, and the paths and values of configs.
"""
_WITH_RECIPE = {"run": "mtf.cli.run", "plan": "mtf.cli.plan.command"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = new_parser("completion", "Print mtf's completion script for a shell.", _EPILOG)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    options = parser.parse_args(argv)
    return exit_status(
        lambda: print(argcomplete.shellcode(["mtf"], shell=options.shell)), only_shows=True
    )


def complete(commands: Iterable[str]) -> None:
    """Prints the completions that a shell requests through environment variables, and exits."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    words, parser = _words(), argparse.ArgumentParser(prog="mtf")
    if len(words) == 1:
        parser.add_argument("command", choices=[*commands, "--version"])
    elif words[1] in _WITH_RECIPE:
        parser = importlib.import_module(_WITH_RECIPE[words[1]]).make_parser()
        os.environ["_ARGCOMPLETE"] = "2"  # the number of words before the arguments
    argcomplete.autocomplete(
        parser,
        always_complete_options=False,
        default_completer=_values,  # type: ignore[arg-type]
    )


def _words() -> list[str]:
    """Returns the words on the command line that precede the word to complete."""
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    return argcomplete.split_line(line, point)[3]


def _values(prefix: str, action: argparse.Action, **_: Any) -> Iterable[str]:
    """Returns the possible values of an argument; raises UserError if earlier words are invalid."""
    from mtf.config import lookup

    option = next(iter(action.option_strings), "")
    if option == "--apply":
        return [each.name for each in lookup.list_fiddlers()]
    if option in ("--set", "--unset", "-h", "--allow"):
        recipes = [word for word in _words() if is_recipe_name(word)]
        return _of_config(recipes[0], option, prefix) if recipes else []
    if action.dest == "recipe":
        return [each.name for each in lookup.list_recipes()]
    return argcomplete.FilesCompleter()(prefix)


def _of_config(recipe: str, option: str, prefix: str) -> list[str]:
    """Returns a config's paths or, if `prefix` is `PATH=…`, the possible values of that field."""
    from mtf.config import lookup, overrides, paths, tree, types

    changes = [word for word in _words() if "=" in word and not word.startswith(recipe)]
    config = overrides.try_overrides(lookup.resolve(recipe), changes)[0]
    path, equals, _ = prefix.partition("=")
    if not equals:
        return [f"{each}{'=' * (option == '--set')}" for each in tree.known_paths(config)]
    declared = overrides.find(config, paths.parse_path(path.removeprefix("+")), prefix).declared
    return [f"{path}={value}" for value in types.choices(declared)]
