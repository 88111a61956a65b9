"""Shows the tasks, rates, lengths and examples of a mixture (`python -m mtf data MIXTURE`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mtf.cli import command
from mtf.cli.options import add_options, read_options
from mtf.jobs import Cache

_CACHE_FIELDS = ("vocabulary", "extra_ids", "module", "data_dir", "templates", "task")

_EPILOG = """\
examples:
  python -m mtf data --list
  python -m mtf data --list super_glue_copa
  python -m mtf data t0++_train --cache caches/t0
  python -m mtf data t0++_train --data-dir datasets \\
      --vocabulary t5.spiece.model -n 10
  python -m mtf data super_glue_rte_GPT_3_style_score_eval \\
      --split validation --data-dir datasets

Without --cache, the first 200 records of each available dataset are rendered and tokenized.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status, which is 0, or 2 for invalid input."""
    options = _parser().parse_args(argv)
    # The seed of the templates is not an option.
    chosen = {**vars(options), "split": [options.split], "seed": 0}

    def run() -> None:
        from mtf.cli import mixture_report  # Imports NumPy, which --help does not need.

        mixture_report.run(options, read_options(chosen, Cache))

    return command.exit_status(run, only_shows=True)


def _parser() -> argparse.ArgumentParser:
    parser = command.new_parser(
        "data", "Show tasks, rates, tokens, packing and examples of a mixture or a task.", _EPILOG
    )
    parser.add_argument("mixture", metavar="MIXTURE", nargs="?", help="name of a mixture or task")
    names = "list the names of all mixtures, or of the tasks whose names begin with PREFIX"
    parser.add_argument("--list", metavar="PREFIX", nargs="?", const="", help=names)
    parser.add_argument("--cache", metavar="DIR", help="token cache to read")
    add_options(parser, Cache, only=_CACHE_FIELDS)
    parser.add_argument("--split", default="train", help="split to show (default: %(default)s)")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default=(1024, 256),
        metavar="INPUTS/TARGETS",
        help="numbers of input and target tokens per row (default: 1024/256)",
    )
    parser.add_argument(
        "-n", type=int, default=3, metavar="N", help="number of examples to show (default: 3)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for the order of the examples (default: 0)"
    )
    return parser


def _lengths(text: str) -> tuple[int, int]:
    inputs, _, targets = text.partition("/")
    try:
        return int(inputs), int(targets)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected two lengths, e.g. 1024/256") from None
