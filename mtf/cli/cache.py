"""Renders and tokenizes a mixture for training (`python -m mtf.cache MIXTURE --output DIR`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mtf.base import signals
from mtf.base.processes.heartbeat import HANG_SECONDS
from mtf.base.processes.process_info import add_process_options
from mtf.cli import command

_EPILOG = """\
examples:
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model \\
      --data-dir datasets --skip-missing --only 'piqa_*' 'trec_*'
  python -m mtf.cache t0++_train --output caches/t0 --check
  python -m mtf.cache t0++_train --output gs://my-bucket/caches/t0
  python -m mtf.cache t0++_train --output caches/t0 --from-seqio hf://datasets/bigscience/P3

If the command fails or is killed, run it again: it keeps the finished parts and continues.
Exit status: 0 on success; 1 if it failed or --check found damage; 2 if the input is invalid, in
which case nothing is written; 130, 143 or 129 if Ctrl-C, SIGTERM or SIGHUP stopped it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = _parser().parse_args(argv)
    signals.hint("run the same command again to continue" * (not options.check))

    def run() -> int:
        from mtf.jobs.cache import (
            run as cache_writing,  # Imports NumPy, which --help does not need.
        )

        return cache_writing.run(options)

    return command.exit_status(run, only_shows=options.check)


def _parser() -> argparse.ArgumentParser:
    parser = command.new_parser(
        "cache", "Render and tokenize a mixture or a single task into a directory.", _EPILOG
    )
    parser.add_argument("mixture", metavar="MIXTURE", help="name of a mixture or task")
    parser.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="directory of the cache: a local path, gs://… or s3://…",
    )
    parser.add_argument(
        "--check", action="store_true", help="only read the cache and verify its checksums"
    )
    number: dict[str, Any] = {"type": _positive, "metavar": "N"}
    content = parser.add_argument_group("content")
    command.add_vocabulary_options(content)
    add = content.add_argument
    splits = (
        "splits to write (default: train and validation, or all splits of a task that has neither; "
        "only validation for tasks whose names end in _score_eval)"
    )
    add("--split", nargs="+", metavar="SPLIT", help=splits)
    add("--only", nargs="+", metavar="GLOB", help="cache only tasks whose names match any GLOB")
    add("--max-rows", **number, help="number of records to read per split (default: all)")
    seed = "seed for random choices in the templates (default: 0)"
    add("--seed", type=int, default=0, help=seed)
    sources = parser.add_argument_group("sources")
    command.add_source_options(sources)
    command.add_dataset_options(parser)
    add = sources.add_argument
    add("--skip-missing", action="store_true", help="skip tasks whose datasets are missing")
    convert = "convert the SeqIO caches DIR/TASK/SPLIT.*; DIR may be hf://datasets/bigscience/P3"
    add("--from-seqio", metavar="DIR", help=convert)
    add = parser.add_argument_group("writing").add_argument
    formats = (
        "array_record: for data.loader='cache'; seqio: TFRecords for SeqIO and T5X with "
        "use_cached=True (default: %(default)s)"
    )
    choices = ("array_record", "seqio")
    add("--format", choices=choices, default="array_record", help=formats)
    add("--num-workers", **number, help="number of processes (default: one per core)")
    add("--num-shards", **number, help="number of files per split (default: depends on its size)")
    hang = (
        "print the stack traces of all threads and exit after this many seconds without progress "
        f"(default: {HANG_SECONDS:.0f}; 0: never)"
    )
    add("--hang-seconds", type=float, default=HANG_SECONDS, metavar="S", help=hang)
    add_process_options(parser)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, not {text!r}")
    return int(text)
