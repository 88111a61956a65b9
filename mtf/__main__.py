"""`python -m mtf COMMAND`, and the console script `mtf`: every command under one name."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import importlib
import sys
from collections.abc import Sequence

import mtf
from mtf.command import exit_status
from mtf.errors import UserError, did_you_mean

# Command → where its `main(argv) -> int` is, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("mtf.run:main", "run a recipe, or show, check and compare its config"),
    "prompts": ("mtf.prompts:main", "get promptsource's templates, and look at them"),
    "convert": ("mtf.convert:main", "checkpoint in, checkpoint out"),
    "cache": ("mtf.cache.__main__:main", "render and tokenise a mixture once, for fast training"),
    "data": ("mtf.data.__main__:main", "look at a mixture: tasks, rates, tokens, examples"),
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"usage: mtf COMMAND …\n\n{mtf.__doc__}\n\ncommands:\n{commands}\n\n"
        "`mtf COMMAND --help` tells more; `python -m mtf.COMMAND` is the same.\n"
        "options:\n  -h, --help\n  --version"
    )


def _answer(command: str) -> int:
    """Answers what is none of the commands; returns the exit status."""
    if command in ("-h", "--help", "help"):
        print(_help())
    elif command == "--version":
        print(f"mtf {mtf.__version__}")
    elif command:
        hint = did_you_mean(command, COMMANDS)
        raise UserError(f"mtf has no command {command}; it has {', '.join(COMMANDS)}.{hint}")
    else:
        print(_help(), file=sys.stderr)
        return 2
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mtf COMMAND …` and returns its exit status."""
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command not in COMMANDS:
        return exit_status(lambda: _answer(command), only_shows=True)
    module, _, function = COMMANDS[command][0].partition(":")
    if argv is None:
        signals.listen()
    status = int(getattr(importlib.import_module(module), function)(rest))
    return signals.ending(status) if argv is None else status


if __name__ == "__main__":
    sys.exit(main())
