"""Runs a command of mtf, given as `python -m mtf COMMAND` or `mtf COMMAND`."""

from __future__ import annotations

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import importlib
import os
import sys
from collections.abc import Sequence

import mtf
from mtf.base.errors import UserError, did_you_mean
from mtf.cli.command import exit_status
from mtf.cli.flags import is_recipe_name

# Command → (module that defines its `main(argv) -> int`, description of the command).
COMMANDS = {
    "run": ("mtf.cli.run", "run a recipe, or show, check and compare its config"),
    "launch": ("mtf.cli.launch.command", "start the processes of a run, here or as a SLURM job"),
    "plan": ("mtf.cli.plan.command", "compile a recipe for a machine, and show whether it fits"),
    "status": ("mtf.cli.status", "show the progress of runs, and whether they are running"),
    "prompts": ("mtf.cli.prompts", "download promptsource's templates"),
    "fetch": ("mtf.cli.fetch", "copy a remote checkpoint to this machine"),
    "convert": ("mtf.cli.convert.command", "convert a checkpoint to Hugging Face's format"),
    "cache": ("mtf.cli.cache", "render and tokenize a mixture before training"),
    "gin": (
        "mtf.cli.gin.command",
        "translate gin files of T5X or Mesh TensorFlow T5 into a recipe",
    ),
    "completion": ("mtf.cli.completion", "print mtf's completion script for a shell"),
    "data": ("mtf.cli.data", "show the tasks, rates, tokens and examples of a mixture"),
    "doctor": ("mtf.cli.doctor", "describe the installation and this machine, and try to train"),
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"usage: mtf COMMAND …\n\n{mtf.__doc__}\n\ncommands:\n{commands}\n\n"
        "`mtf COMMAND --help` shows the options of a command; `mtf COMMAND` is "
        "the same as `python -m mtf COMMAND`.\n\n"
        "options:\n  -h, --help\n  --version"
    )


def _without_command(command: str) -> int:
    """Prints the help or the version; raises UserError if the command is unknown."""
    if command in ("-h", "--help", "help"):
        print(_help())
    elif command == "--version":
        print(f"mtf {mtf.__version__}")
    elif command:
        hint = did_you_mean(command, [*COMMANDS, "--help", "--version"])
        if is_recipe_name(command):
            hint = f" To run a recipe, write mtf run {command}"
        raise UserError(f"Unknown command {command}; expected one of {', '.join(COMMANDS)}.{hint}")
    else:
        print(_help(), file=sys.stderr)
        return 2
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `mtf COMMAND …` and returns its exit status."""
    if "_ARGCOMPLETE" in os.environ:  # A shell is requesting completions.
        from mtf.cli.completion import complete

        complete([*COMMANDS])
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command not in COMMANDS:
        return exit_status(lambda: _without_command(command), only_shows=True)
    if argv is None:
        signals.listen()
    status = int(importlib.import_module(COMMANDS[command][0]).main(rest))
    if argv is None:
        signals.leave(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
