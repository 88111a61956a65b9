"""Renders and tokenizes a mixture for training (`python -m mtf.cache MIXTURE`)."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from mtf.base.processes.process_info import add_process_options, find_processes
from mtf.base.progress import waiting
from mtf.cli import command
from mtf.cli.options import add_options, read_options
from mtf.jobs import Cache

_EPILOG = """\
examples:
  python -m mtf.cache t0++_train
  python -m mtf.cache t0++_train --output caches/t0 --data-dir datasets \\
      --skip-missing --only 'piqa_*' 'trec_*'
  python -m mtf.cache t0++_train --output caches/t0 --check
  python -m mtf.cache t0++_train --output gs://my-bucket/caches/t0
  python -m mtf.cache t0++_train --output caches/t0 \\
      --from-seqio hf://datasets/bigscience/P3

If the command fails or is killed, run it again: it keeps the finished parts and continues.
`python -m mtf.run "recipes.cache(mixture='t0++_train', output='caches/t0')"` does the same.
Exit status: 0 on success; 1 if it failed or --check found damage; 2 if the input is invalid, in
which case nothing is written; 130, 143 or 129 if Ctrl-C, SIGTERM or SIGHUP stopped it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    summary = "Render and tokenize a mixture or a single task into a directory."
    parser = command.new_parser("cache", summary, _EPILOG)
    check = "only read the cache and verify its checksums"
    parser.add_argument("--check", action="store_true", help=check)
    add_options(parser, Cache, {"mixture": "MIXTURE"})
    add_process_options(parser)
    options = parser.parse_args(argv)

    def run() -> int:
        job = read_options(vars(options), Cache)
        if options.check:
            return _check(job)
        processes = find_processes(os.environ, options)
        if processes is None:
            job.run()
            return 0
        from mtf.base.processes.rendezvous import Rendezvous  # Imports JAX.

        status_of = functools.partial(command.exit_status, only_shows=False)
        Rendezvous(processes).run(job.run, status_of)
        return 0

    return command.exit_status(run, only_shows=options.check)


def _check(job: Cache) -> int:
    """Prints the damage in a cache, and returns the exit status."""
    from mtf.data.cache.reader import TokenCache, check_files  # Imports NumPy.
    from mtf.jobs.cache.run import output_of
    from mtf.storage import as_path

    cache_dir = as_path(output_of(job))
    cache = TokenCache(cache_dir, job.mixture)
    names = list(cache.mixture(job.mixture).tasks)
    num_damaged = 0
    with waiting(f"reading {cache_dir}"):
        found = list(check_files(cache_dir, names))
    for name, problems in found:
        num_damaged += bool(problems)
        print("".join(f"{problem}\n" for problem in problems), end="")
        if problems and cache.has(name):
            print(f"  Delete {cache_dir / name} and cache {job.mixture} again.")
    if unfinished := cache.unfinished():
        print(f"incomplete tasks: {', '.join(unfinished)}")
    print(f"{len(names)} tasks read, {num_damaged} damaged")
    return 1 if num_damaged else 0
