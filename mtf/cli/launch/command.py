"""Starts the processes of a run (`python -m mtf launch TARGET [options] -- RECIPE …`)."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from mtf.base.errors import UserError
from mtf.cli.command import exit_status, new_parser
from mtf.cli.launch import local, slurm

_EPILOG = """\
examples:
  python -m mtf launch local --processes 2 -- recipes.quickstart \\
      --set train_steps=50
  python -m mtf launch local --processes 4 --devices-per-process 2 -- \\
      recipes.quickstart
  python -m mtf launch slurm --nodes 2 --gpus-per-node 8 \\
      --time 24:00:00 -- recipes.t5_1_1_base_c4 --set model_dir=runs/base

Each process runs `python -m mtf.run` with the arguments after --. The exit status is 0, or that of
the first process that failed. docs/launch/ contains files for TPU pods, GPU clusters and
Kubernetes.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser, targets = _parser()
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        targets[options.target].error(f"unrecognized arguments: {' '.join(unknown)}")
    options.command = [*options.command, *arguments[end + 1 :]]
    return exit_status(lambda: _main(options, arguments[:end]), only_shows=options.dry_run)


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser, and that of each target."""
    parser = new_parser("launch", "Start the processes of a run.", _EPILOG)
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    local.add_options(
        targets.add_parser("local", allow_abbrev=False, help="processes on this machine")
    )
    slurm.add_options(targets.add_parser("slurm", allow_abbrev=False, help="a SLURM job"))
    for target in targets.choices.values():
        target.add_argument(
            "--dry-run", action="store_true", help="print what would be started or submitted"
        )
        text = "arguments of `python -m mtf.run`, after --"
        target.add_argument("command", nargs="*", metavar="-- RECIPE …", help=text)
    return parser, targets.choices


def _main(options: argparse.Namespace, given: Sequence[str]) -> int:
    if options.command:
        return (local if options.target == "local" else slurm).launch(options)
    raise UserError(
        "No recipe was given. Pass a recipe after --, for example: python -m mtf launch "
        f"{shlex.join(given)} -- recipes.quickstart"
    )
