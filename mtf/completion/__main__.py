"""`python -m mtf.completion SHELL`: prints the script with which a shell completes `mtf`."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import os
import sys
from collections.abc import Sequence

from mtf.command import exit_status, new_parser
from mtf.completion.scripts import SCRIPTS
from mtf.errors import UserError

_EPILOG = """\
examples:
  source <(mtf completion bash)                                  # in ~/.bashrc
  source <(mtf completion zsh)                                   # in ~/.zshrc, after compinit
  mtf completion fish > ~/.config/fish/completions/mtf.fish

Completes commands, options, recipes, fiddlers, the paths of a recipe's config, and their values.
"""


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("completion", "Print the script with which a shell completes mtf.", _EPILOG)
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell")
    # For the scripts: what was typed, as a line or as words.
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--breaks", default="", help=argparse.SUPPRESS)
    parser.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> None:
    if options.line is None and options.words is None:
        if options.shell is None:
            raise UserError(f"The shell is missing; expected one of {', '.join(SCRIPTS)}.")
        return print(SCRIPTS[options.shell], end="")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())

    from mtf.completion import words

    if options.line is not None:
        found = words.of_line(options.line, options.breaks)
    else:
        found = words.of_words(options.words)
    print("".join(f"{each}\n" for each in found), end="")


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
