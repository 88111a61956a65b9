"""`python -m mtf COMMAND`, and the console script `mtf`: every command under one name."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import importlib
import sys
from collections.abc import Sequence

import mtf
from mtf.errors import did_you_mean

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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mtf COMMAND …` and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_help(), file=sys.stderr)
        return 2
    command, rest = arguments[0], arguments[1:]
    if command in ("-h", "--help", "help"):
        print(_help())
        return 0
    if command == "--version":
        print(f"mtf {mtf.__version__}")
        return 0
    if command not in COMMANDS:
        known = ", ".join(COMMANDS)
        hint = did_you_mean(command, COMMANDS)
        print(f"error: mtf has no command {command}; it has {known}.{hint}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[command][0].partition(":")
    if argv is None:
        signals.listen()
    status = int(getattr(importlib.import_module(module), function)(rest))
    return signals.ending(status) if argv is None else status


if __name__ == "__main__":
    sys.exit(main())
