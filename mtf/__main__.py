"""`python -m mtf COMMAND`, also installed as `mtf COMMAND`: runs one of mtf's commands."""

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

# Command → the module of its `main(argv) -> int`, and what the command does.
COMMANDS = {
    "run": ("mtf.run", "run a recipe, or show, check and compare its config"),
    "launch": ("mtf.launch.__main__", "start the processes of a run here, or a job of SLURM"),
    "plan": ("mtf.plan.__main__", "compile a recipe for a machine, and show whether it fits"),
    "status": ("mtf.status", "show how far runs are, and whether they are running"),
    "prompts": ("mtf.prompts", "download and show promptsource's templates"),
    "fetch": ("mtf.fetch", "copy a checkpoint in a store to this machine"),
    "convert": ("mtf.convert", "convert a checkpoint to Hugging Face's format"),
    "cache": ("mtf.cache.__main__", "render and tokenize a mixture before training"),
    "gin": ("mtf.gin.__main__", "translate gin files of T5X or Mesh TensorFlow's T5 to a recipe"),
    "completion": ("mtf.completion.__main__", "print the script with which a shell completes mtf"),
    "data": ("mtf.data.__main__", "show a mixture: tasks, rates, tokens, examples"),
    "doctor": (
        "mtf.doctor.__main__",
        "describe the installation and this machine, and try to train",
    ),
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        f"usage: mtf COMMAND …\n\n{mtf.__doc__}\n\ncommands:\n{commands}\n\n"
        "`mtf COMMAND --help` shows the options of a command; `mtf COMMAND` is "
        "the same as `python -m mtf.COMMAND`.\n\n"
        "options:\n  -h, --help\n  --version"
    )


def _without_command(command: str) -> int:
    """Shows the help or the version, or refuses an unknown command."""
    if command in ("-h", "--help", "help"):
        print(_help())
    elif command == "--version":
        print(f"mtf {mtf.__version__}")
    elif command:
        hint = did_you_mean(command, COMMANDS)
        raise UserError(f"Unknown command {command}; expected one of {', '.join(COMMANDS)}.{hint}")
    else:
        print(_help(), file=sys.stderr)
        return 2
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mtf COMMAND …` and returns its exit status."""
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command not in COMMANDS:
        return exit_status(lambda: _without_command(command), only_shows=True)
    if argv is None:
        signals.listen()
    status = int(importlib.import_module(COMMANDS[command][0]).main(rest))
    return signals.ending(status) if argv is None else status


if __name__ == "__main__":
    sys.exit(main())
