"""Converts, inspects and compares checkpoints (`python -m mtf.convert`)."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mtf.cli.command import add_trust_option, exit_status, new_parser
from mtf.cli.options import add_options, option, read_options
from mtf.config.allowed import trust_runs
from mtf.config.lookup import import_user_module
from mtf.jobs import Convert

_USAGE = """
  %(prog)s CHECKPOINT OUT_DIR --to FORMAT [OPTIONS]
  %(prog)s --inspect CHECKPOINT [--step N]
  %(prog)s --compare A B [--step N]"""
_EPILOG = """\
examples:
  python -m mtf.convert runs/quickstart-20260101-120000 exported \\
      --to hf --verify
  python -m mtf.convert t5_1_1_small/checkpoint_1000000 exported --to hf \\
      --vocabulary sentencepiece.model
  python -m mtf.convert runs/quickstart-20260101-120000 for_t5x --to t5x
  python -m mtf.convert --inspect t5_1_1_small/checkpoint_1000000
  python -m mtf.convert --compare t5_1_1_small/checkpoint_1000000 exported

A local OUT_DIR appears when the export is complete and has passed verification, if any. In a
remote OUT_DIR, the file that marks the export as complete is written last; T5X, mtf and PEFT
exports, and hf with --verify, are first written to this machine.
`python -m mtf.run "recipes.convert(checkpoint='RUN', output='OUT', to='hf')"` does the same.
Exit status: 0 on success; 1 if verification or --compare finds a difference or the disk is full; 2
if the conversion is impossible.
"""

_ALLOWED = {"checkpoint", "step", "inspect", "compare", "output", "module", "trust"}
_POSITIONAL = {"checkpoint": "CHECKPOINT", "output": "OUT_DIR"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return exit_status(lambda: _main(argv), only_shows=False)


def _main(argv: Sequence[str] | None) -> int:
    # A module of the user may register formats, so it is imported before the options are defined.
    early = new_parser("convert", "", "", add_help=False)
    early.add_argument("--module")
    if module := early.parse_known_args(argv)[0].module:
        import_user_module(module, "--module")
    parser = _parser()
    # Unlike `parse_args`, this accepts options between CHECKPOINT and the optional OUT_DIR.
    options = vars(parser.parse_intermixed_args(argv))
    logging.basicConfig(format="%(message)s")
    if options["inspect"] or options["compare"]:
        _check_mode(parser, options)
        return exit_status(lambda: _show(options), only_shows=True)
    needed = {"output": "OUT_DIR", "to": "--to"}
    if missing := [shown for name, shown in needed.items() if name not in options]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    trust_runs(options["trust"])
    read_options(options, Convert).run()
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Convert a checkpoint from any format to another."
    parser = new_parser("convert", description, _EPILOG)
    parser.usage = _USAGE
    mode = parser.add_mutually_exclusive_group()
    inspect = "list the tensors with their shapes, types, statistics, and names in the file, "
    mode.add_argument("--inspect", action="store_true", help=f"{inspect}in T5X and in Hugging Face")
    compare = "compare CHECKPOINT with OUT_DIR, each in any format; exit with status 1 if they "
    mode.add_argument("--compare", action="store_true", help=f"{compare}differ")
    add_options(parser, Convert, _POSITIONAL)
    module = "import a module that registers a checkpoint format, e.g. my.formats"
    parser.add_argument("--module", default=argparse.SUPPRESS, metavar="MODULE", help=module)
    add_trust_option(parser.add_argument)
    return parser


def _check_mode(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Exits with a usage error if an argument cannot be used with --inspect or --compare."""
    mode = "--inspect" if options["inspect"] else "--compare"
    others = sorted(options.keys() - _ALLOWED)
    if others:
        parser.error(f"{', '.join(map(option, others))} cannot be used with {mode}")
    if options["inspect"] and "output" in options:
        parser.error(f"--inspect takes one checkpoint; {options['output']} is a second one")
    if options["compare"] and "output" not in options:
        parser.error("--compare takes two checkpoints")


def _show(options: Mapping[str, Any]) -> int:
    """Prints the tensors of a checkpoint, or the differences between two; returns the status."""
    from mtf.cli.convert import inspection  # Imports NumPy.

    step = options.get("step")
    if options["inspect"]:
        return inspection.inspect(options["checkpoint"], step)
    return inspection.compare(options["checkpoint"], options["output"], step)
