"""`python -m mtf.cache MIXTURE --output DIR`: render and tokenize once, then train from that."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf import command
from mtf.errors import RunError, UserError
from mtf.progress import rate_bar
from mtf.writing import free_space, locked, write_failure

if TYPE_CHECKING:
    from mtf.cache.build import CacheProgress, Plan

_EPILOG = """\
examples:
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model \\
      --data-dir datasets --skip-missing --only 'piqa_*' 'trec_*'
  python -m mtf.cache t0++_train --output caches/t0 --check
  python -m mtf.cache t0++_train --output caches/t0 --from-seqio p3 --vocabulary t5.spiece.model

If it is killed or fails, run it again to go on: what is finished is kept.
Exit status: 0 done, 1 failed or --check found damage, 2 refused; stopped: 130 by Ctrl-C, 143 by
SIGTERM, 129 by SIGHUP.
"""
_NUM_REASONS_SHOWN = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks a cache as the command line says; returns the exit status."""
    options, runner_options = _parser().parse_known_args(argv)
    signals.hint("run the same command again to go on" * (not options.check))
    return command.exit_status(lambda: _main(options, runner_options), only_shows=options.check)


def _main(options: argparse.Namespace, runner_options: list[str]) -> int:
    if runner_options and options.runner is None:
        raise UserError(f"unknown options: {' '.join(runner_options)}; --help shows all")
    if options.check:
        return _check(options)
    # Where Beam writes may be no directory of this machine.
    local = options.runner is None
    try:
        with locked(options.output, "--output") if local else contextlib.nullcontext():
            return _write(options, runner_options)
    except UserError:
        raise  # It says what is wrong already, though its cause may be a failed write.
    except Exception as error:
        reason = write_failure(error, options.output)
        if reason is None:
            raise
        raise RunError(
            f"{options.output} cannot be written to: {reason}; {free_space(options.output)}. What "
            "is finished is kept: when it can be written to, run the same command again to go on."
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = command.new_parser(
        "cache", "Renders and tokenizes a mixture, or one task, into a directory.", _EPILOG
    )
    parser.add_argument("mixture", metavar="MIXTURE", help="a mixture or a task, by name")
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="of the cache")
    what, where, how = map(parser.add_argument_group, ("what", "from where", "how"))
    splits = "default: train, and validation where there is one; validation of ranked tasks"
    missing = "leave out tasks whose dataset is missing"
    take_over = "take the examples from SeqIO's caches (DIR/TASK/SPLIT.tfrecord-*), such as P3's"
    formats = "seqio: TFRecords that SeqIO and T5X read with use_cached=True (default: %(default)s)"
    runners = "run on Beam (DirectRunner, DataflowRunner, …); its own options may follow"
    check = "write nothing: read all of it, compare checksums"
    number: dict[str, Any] = {"type": _positive, "metavar": "N"}
    command.add_vocabulary_options(what)
    what.add_argument("--split", nargs="+", metavar="SPLIT", help=splits)
    what.add_argument("--only", nargs="+", metavar="GLOB", help="tasks whose names match")
    what.add_argument("--max-rows", **number, help="of every split, for a trial (default: all)")
    what.add_argument(
        "--seed", type=int, default=0, help="of templates' random choices (default: 0)"
    )
    command.add_source_options(where)
    where.add_argument("--skip-missing", action="store_true", help=missing)
    where.add_argument("--from-seqio", metavar="DIR", type=Path, help=take_over)
    choices = ("array_record", "seqio")
    how.add_argument("--format", choices=choices, default="array_record", help=formats)
    how.add_argument("--num-workers", **number, help="processes (default: one a core)")
    how.add_argument("--num-shards", **number, help="of a split (default: by its size)")
    how.add_argument("--runner", metavar="beam:RUNNER", help=runners)
    parser.add_argument("--check", action="store_true", help=check)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _write(options: argparse.Namespace, runner_options: list[str]) -> int:
    from mtf.cache import build
    from mtf.cache.format import ArrayRecordFormat
    from mtf.cache.settings import CacheConfig
    from mtf.seqio.cache_format import SeqioFormat

    mixture, vocabulary = command.chosen_mixture(options)
    settings = CacheConfig(
        cache_dir=options.output,
        vocabulary=vocabulary,
        format=SeqioFormat() if options.format == "seqio" else ArrayRecordFormat(),
        splits=tuple(options.split) if options.split else None,
        seed=options.seed,
        num_shards=options.num_shards,
        data_dir=options.data_dir,
        only=tuple(options.only) if options.only else None,
        skip_missing=options.skip_missing,
        max_rows=options.max_rows,
    )
    if options.runner is not None:
        from mtf.seqio import beam

        beam.run(mixture, settings, options.runner, runner_options)
        return 0
    if options.from_seqio is not None:
        from mtf.seqio import from_seqio

        plan = from_seqio.make_plan(mixture, settings, options.from_seqio)
    else:
        plan = build.make_plan(mixture, settings)
    _say_what_is_left_out(plan)
    num_workers = options.num_workers or len(os.sched_getaffinity(0))
    start = time.perf_counter()
    with signals.Interrupts() as interrupts, rate_bar(plan.num_rows, "examples") as show:
        interrupts.hold()

        def report(done: CacheProgress) -> None:
            interrupts.raise_if_requested()
            tasks = f"{done.num_tasks}/{len(plan.works)} tasks"
            show(done.num_rows, done.num_examples, tasks)

        build.run_plan(plan, num_workers, report)
    if not plan.works:
        print(f"{options.output}: all {len(plan.finished)} tasks are there")
        return 0
    _print_summary(plan, time.perf_counter() - start)
    return 0


def _say_what_is_left_out(plan: Plan) -> None:
    from mtf.cache.build import NOT_CHOSEN
    from mtf.cache.format import mixture_path

    absent = {task: reason for task, reason in plan.absent.items() if reason != NOT_CHOSEN}
    reasons = Counter(absent.values())
    for reason, num_tasks in list(reasons.items())[:_NUM_REASONS_SHOWN]:
        print(f"left out ({num_tasks} tasks): {reason}", file=sys.stderr)
    if len(reasons) > _NUM_REASONS_SHOWN:
        where = mixture_path(plan.settings.cache_dir, plan.mixture.name)
        print(
            f"{len(absent)} tasks are left out for {len(reasons)} reasons: {where} will have all",
            file=sys.stderr,
        )


def _print_summary(plan: Plan, seconds: float) -> None:
    from mtf.cache.format import TaskInfo, read_json

    cache_dir = plan.settings.cache_dir
    infos = [read_json(cache_dir / name / "info.json", TaskInfo) for name in plan.works]
    splits = [split for info in infos for split in info.splits.values()]
    num_examples = sum(split.num_examples for split in splits)
    num_tokens = sum(sum(split.num_tokens.values()) for split in splits)
    num_bytes = sum(shard.num_bytes for split in splits for shard in split.shards)
    print(
        f"{cache_dir}: {len(infos)} tasks written in {seconds:.0f} s, "
        f"{len(plan.finished)} were there, {len(plan.absent)} left out\n"
        f"{num_examples:,} examples of {sum(split.num_rows for split in splits):,} rows "
        f"({sum(split.num_dropped for split in splits):,} rows dropped by their templates), "
        f"{num_tokens:,} tokens, {num_bytes / 1e6:,.1f} MB"
    )


def _check(options: argparse.Namespace) -> int:
    from mtf.cache.format import INCOMPLETE
    from mtf.cache.reader import TokenCache, check_files

    cache_dir: Path = options.output
    names = list(TokenCache(cache_dir, options.mixture).mixture(options.mixture).tasks)
    num_damaged = 0
    for name, problems in check_files(cache_dir, names):
        num_damaged += bool(problems)
        for problem in problems:
            print(problem)
        if problems and (cache_dir / name).is_dir():
            print(f"  delete {cache_dir / name} and cache {options.mixture} again")
    unfinished = sorted(path.name for path in cache_dir.glob(f"*{INCOMPLETE}"))
    if unfinished:
        print(f"not finished: {', '.join(unfinished)}")
    print(f"{len(names)} tasks read, {num_damaged} damaged")
    return 1 if num_damaged else 0


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
