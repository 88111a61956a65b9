"""What commands share that run as one of several processes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from mtf import signals
from mtf.cluster.places import Place, find_place
from mtf.command import exit_status
from mtf.errors import RunError, UserError

if TYPE_CHECKING:
    from mtf.cluster.meeting import Meeting


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which of several processes this one is."""
    several = parser.add_argument_group(
        "several processes (found by themselves under mtf.launch, SLURM, Open MPI and on TPU pods)"
    ).add_argument
    several("--coordinator-address", metavar="HOST:PORT", help="where process 0 listens")
    several("--process-count", type=int, metavar="N", help="number of processes of this run")
    several("--process-index", type=int, metavar="I", help="number of this process, from 0")


def place_of(options: argparse.Namespace) -> Place | None:
    """Returns which of several processes this one is, or None if it runs alone."""
    given = options.coordinator_address, options.process_count, options.process_index
    return find_place(os.environ, *given)


def run_together(meeting: Meeting, start: Callable[[], None]) -> None:
    """Does the work of this process; if it fails, the other processes end, too."""
    try:
        start()
    except BaseException as error:
        is_news = isinstance(error, UserError | RunError | signals.Stopped)
        problem = str(error) if is_news else f"{type(error).__name__}: {error}"
        if isinstance(error, signals.Stopped):
            problem = f"a signal (number {error.number}) stopped it"
        meeting.leave(problem, is_news=is_news)
        status = _status_of(error)
        sys.stdout.flush()
        os._exit(status)  # At an exit, JAX would wait for the other processes.
    meeting.leave()


def _status_of(error: BaseException) -> int:
    """Prints an error and returns the exit status."""

    def fail() -> None:
        raise error

    try:
        return exit_status(fail, only_shows=False)
    except BaseException:
        traceback.print_exc()
        return 1
