"""`python -m mtf.launch TARGET [options] -- RECIPE …`: starts the processes of a run."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import sys
from collections.abc import Sequence

from mtf.command import exit_status, new_parser
from mtf.errors import UserError
from mtf.launch import local, slurm

_TARGETS = {"local": local.launch, "slurm": slurm.launch}

_EPILOG = """\
examples:
  python -m mtf.launch local --processes 2 -- recipes.quickstart --set train_steps=50
  python -m mtf.launch local --processes 4 --devices-per-process 2 -- recipes.quickstart
  python -m mtf.launch slurm --nodes 2 --gpus-per-node 8 --time 24:00:00 -- \\
      recipes.t5_1_1_base_c4 --set model_dir=runs/base

What follows -- are the arguments of `python -m mtf.run`, which each process runs. Exit status: 0
done; otherwise that of the first process that failed.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    return exit_status(lambda: _main(options), only_shows=options.dry_run)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("launch", "Start the processes of a run.", _EPILOG)
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    local.add_options(targets.add_parser("local", help="processes on this machine"))
    slurm.add_options(targets.add_parser("slurm", help="a job of SLURM"))
    for target in targets.choices.values():
        target.add_argument(
            "--dry-run", action="store_true", help="print what would be started or submitted"
        )
        text = "arguments of `python -m mtf.run`, after --"
        target.add_argument("command", nargs="*", metavar="-- RECIPE …", help=text)
    return parser


def _main(options: argparse.Namespace) -> int:
    if not options.command:
        raise UserError(
            f"The recipe is missing. Write it after --, for example: python -m mtf.launch "
            f"{options.target} … -- recipes.quickstart"
        )
    return _TARGETS[options.target](options)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
