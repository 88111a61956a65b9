"""`python -m mtf.cache MIXTURE --output DIR` renders and tokenizes a mixture once for training."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import contextlib
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf import command, together
from mtf.copies import cache_directory, local_copy
from mtf.downloads import as_user_errors
from mtf.errors import RunError, UserError
from mtf.progress import rate_bar
from mtf.storage import AnyPath, StorePath, as_path
from mtf.writing import LOCK_FILE, free_space, locked, write_failure

if TYPE_CHECKING:
    from mtf.cache.build import CacheProgress, Plan
    from mtf.cluster.places import Place

_EPILOG = """\
examples:
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model
  python -m mtf.cache t0++_train --output caches/t0 --vocabulary t5.spiece.model \\
      --data-dir datasets --skip-missing --only 'piqa_*' 'trec_*'
  python -m mtf.cache t0++_train --output caches/t0 --check
  python -m mtf.cache t0++_train --output gs://my-bucket/caches/t0
  python -m mtf.cache t0++_train --output caches/t0 --from-seqio hf://datasets/bigscience/P3

If the command is killed or fails, run it again: it keeps finished parts and continues.
Exit status: 0 done; 1 failed, or --check found damage; 2 bad input, nothing written;
130, 143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP.
"""
_NUM_REASONS_SHOWN = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options, runner_options = _parser().parse_known_args(argv)
    signals.hint("run the same command again to continue" * (not options.check))
    return command.exit_status(lambda: _main(options, runner_options), only_shows=options.check)


def _main(options: argparse.Namespace, runner_options: list[str]) -> int:
    if runner_options and options.runner is None:
        raise UserError(f"unknown options: {' '.join(runner_options)}; --help shows all")
    if options.check:
        return _check(options)
    output = Path(options.output) if options.runner else as_path(options.output)
    # Beam may write to a place outside this machine.
    local = options.runner is None
    place = together.place_of(options)
    if place is not None and not local:
        raise UserError("--runner starts the processes of Beam itself; start the command once.")
    index = 0 if place is None else place.index
    cache_dir = output if isinstance(output, Path) else _staging(output, index)
    is_locked = local and (index == 0 or not isinstance(output, Path))
    try:
        with locked(cache_dir, "--output", shown=output) if is_locked else contextlib.nullcontext():
            if not isinstance(output, Path):
                _copy_descriptions(output, cache_dir)
            return _write(options, runner_options, cache_dir, output, place)
    except UserError:
        raise  # complete already, though its cause may be a failed write
    except Exception as error:
        reason = write_failure(error, output) or write_failure(error, cache_dir)
        if reason is None:
            raise
        raise RunError(
            f"--output {output} cannot be written to: {reason}{free_space(cache_dir)}. "
            "Finished parts are kept; solve this problem, then run the same command to continue."
        ) from None


def _staging(output: StorePath, index: int) -> Path:
    """Returns the directory of the files that this process writes to a cache in a store."""
    folder = cache_directory() / "writing" / output.scheme / output.key
    return folder.with_name(f"{folder.name}.{index}") if index else folder


def _copy_descriptions(output: StorePath, cache_dir: Path) -> None:
    """Copies the descriptions of what a cache in a store has already; there may be none."""
    from mtf.cache.reader import is_description
    from mtf.cache.recording import is_record

    with as_user_errors("--output"):
        if not output.has_bucket():
            raise UserError(f"--output {output}: there is no bucket {output.bucket!r}")
        names = {name for name in output.files_below() if not is_record(name)}
        if names and "cache.json" not in names:
            raise UserError(f"--output {output} is neither empty nor a cache; use another path")
        if names:
            local_copy(output, only=is_description, to=cache_dir)
        else:
            for each in cache_dir.iterdir():
                if each.name != LOCK_FILE:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()


def _parser() -> argparse.ArgumentParser:
    parser = command.new_parser(
        "cache", "Render and tokenize a mixture or a single task into a directory.", _EPILOG
    )
    parser.add_argument("mixture", metavar="MIXTURE", help="name of a mixture or task")
    output = "the cache: a directory or an address (gs://, s3://)"
    parser.add_argument("--output", metavar="DIR", required=True, help=output)
    what, where, how = map(parser.add_argument_group, ("content", "sources", "writing"))
    splits = (
        "splits to write (default: train and validation, or all of a task without both; only "
        "validation for tasks whose name ends in _score_eval)"
    )
    missing = "leave out tasks whose dataset is missing"
    convert = "convert SeqIO's caches, DIR/TASK/SPLIT.*, for example hf://datasets/bigscience/P3"
    formats = (
        "array_record: for data.loader='cache'; seqio: TFRecords for SeqIO and T5X with "
        "use_cached=True (default: %(default)s)"
    )
    runners = (
        "cache with Beam (pip install 'mtf-jax[beam]') in SeqIO's format, e.g. with "
        "beam:BundleBasedDirectRunner on this machine; further options are passed to Beam"
    )
    hang = (
        "end with the stacks of all threads after so many seconds without progress in writing "
        "(default: 1800; none: never)"
    )
    check = "only read the whole cache and verify its checksums; write nothing"
    number: dict[str, Any] = {"type": _positive, "metavar": "N"}
    command.add_vocabulary_options(what)
    what.add_argument("--split", nargs="+", metavar="SPLIT", help=splits)
    what.add_argument(
        "--only", nargs="+", metavar="GLOB", help="cache only tasks whose names match"
    )
    what.add_argument("--max-rows", **number, help="records to read per split (default: all)")
    what.add_argument(
        "--seed", type=int, default=0, help="seed of the templates' random choices (default: 0)"
    )
    command.add_source_options(where)
    command.add_dataset_options(parser)
    where.add_argument("--skip-missing", action="store_true", help=missing)
    where.add_argument("--from-seqio", metavar="DIR", help=convert)
    choices = ("array_record", "seqio")
    how.add_argument("--format", choices=choices, default="array_record", help=formats)
    how.add_argument("--num-workers", **number, help="number of processes (default: one per core)")
    how.add_argument("--num-shards", **number, help="files per split (default: set by its size)")
    how.add_argument("--runner", metavar="beam:RUNNER", help=runners)
    how.add_argument("--hang-seconds", type=_seconds, default=1800.0, metavar="S", help=hang)
    together.add_place_options(parser)
    parser.add_argument("--check", action="store_true", help=check)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, not {text!r}")
    return int(text)


def _seconds(text: str) -> float | None:
    try:
        seconds = math.inf if text.lower() == "none" else float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, or none, not {text!r}")
    return seconds if math.isfinite(seconds) else None


def _write(
    options: argparse.Namespace,
    runner_options: list[str],
    cache_dir: Path,
    output: AnyPath,
    place: Place | None,
) -> int:
    from mtf.cache import build, hosts
    from mtf.cache.format import ArrayRecordFormat
    from mtf.cache.recording import recorded
    from mtf.cache.settings import CacheConfig
    from mtf.seqio.cache_format import SeqioFormat

    mixture, vocabulary = command.chosen_mixture(options)
    settings = CacheConfig(
        cache_dir=cache_dir,
        store=output if isinstance(output, StorePath) else None,
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
    index, count = (0, 1) if place is None else (place.index, place.count)
    if index == 0:
        _print_left_out(plan)
    num_workers = options.num_workers or len(os.sched_getaffinity(0))
    start = time.perf_counter()
    with signals.Interrupts() as interrupts, rate_bar(plan.num_rows, "examples") as show:
        interrupts.hold()

        def write(run: Callable[[build.Report], None]) -> None:
            with recorded(settings.where, index, count, options.hang_seconds) as note:

                def report(done: CacheProgress) -> None:
                    interrupts.raise_if_requested()
                    rows = f"{done.num_rows:,} records"
                    if index == 0:
                        tasks = f"{done.num_tasks}/{len(plan.works)} tasks"
                        show(done.num_rows, done.num_examples, tasks)
                        rows = f"{tasks}, {done.num_rows:,} of {plan.num_rows:,} records"
                    note(done, rows)

                run(report)

        if place is None:
            write(lambda report: build.run_plan(plan, num_workers, report))
        else:
            meeting = hosts.meet(place, plan)

            def write_share(report: build.Report) -> None:
                hosts.run_plan(plan, num_workers, report, meeting, place)

            together.run_together(meeting, lambda: write(write_share))
    if index:
        return 0
    if not plan.works:
        print(f"{options.output}: all {len(plan.finished)} tasks are already complete")
        return 0
    _print_summary(plan, time.perf_counter() - start)
    return 0


def _print_left_out(plan: Plan) -> None:
    from mtf.cache.build import NOT_CHOSEN

    absent = {task: reason for task, reason in plan.absent.items() if reason != NOT_CHOSEN}
    reasons = Counter(absent.values())
    for reason, num_tasks in list(reasons.items())[:_NUM_REASONS_SHOWN]:
        print(f"left out ({num_tasks} tasks): {reason}", file=sys.stderr)
    if len(reasons) > _NUM_REASONS_SHOWN:
        where = f"{plan.settings.where}/mixtures/{plan.mixture.name}.json"
        print(
            f"{len(absent)} tasks are left out for {len(reasons)} reasons; {where} will list them",
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
        f"{plan.settings.where}: {len(infos)} tasks written in {seconds:.0f} s, "
        f"{len(plan.finished)} were already complete, {len(plan.absent)} left out\n"
        f"{num_examples:,} examples from {sum(split.num_rows for split in splits):,} records "
        f"({sum(split.num_dropped for split in splits):,} records dropped by their templates), "
        f"{num_tokens:,} tokens, {num_bytes / 1e6:,.1f} MB"
    )


def _check(options: argparse.Namespace) -> int:
    from mtf.cache.reader import TokenCache, check_files

    cache_dir = as_path(options.output)
    cache = TokenCache(cache_dir, options.mixture)
    names = list(cache.mixture(options.mixture).tasks)
    num_damaged = 0
    for name, problems in check_files(cache_dir, names):
        num_damaged += bool(problems)
        for problem in problems:
            print(problem)
        if problems and cache.has(name):
            print(f"  Delete {cache_dir / name} and cache {options.mixture} again.")
    unfinished = cache.unfinished()
    if unfinished:
        print(f"incomplete tasks: {', '.join(unfinished)}")
    print(f"{len(names)} tasks read, {num_damaged} damaged")
    return 1 if num_damaged else 0


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
