"""Records, in a cache, the activity of the processes that write it.

The records are removed at the end, so a complete cache always contains the same files.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mtf.base import signals
from mtf.base.processes.heartbeat import CACHING, Heartbeat
from mtf.base.processes.records import FOLDER
from mtf.base.run_end import END_FILE, RunEnd, failure, read_end, write_end
from mtf.base.writing import JOB_FILE, LOCK_FILE
from mtf.storage import AnyPath


class CacheProgress(NamedTuple):
    """How many tasks have been finished, how many records read, and how many examples written.

    `waits` is True if this host has written all its shards and is waiting for other hosts.
    """

    num_tasks: int
    num_rows: int
    num_examples: int
    waits: bool = False


def is_record(name: str) -> bool:
    """Returns whether a path in a cache is a record of the job and processes that write it."""
    return name.partition("/")[0] in (LOCK_FILE, END_FILE, FOLDER, JOB_FILE)


@contextlib.contextmanager
def recorded(
    cache_dir: AnyPath, index: int, count: int, hang_seconds: float | None
) -> Iterator[Callable[[CacheProgress, str], None]]:
    """Records the activity of this process in a cache and, if the block fails, the reason.

    Yields a function to be called with the progress and a text that describes it.

    Args:
      cache_dir: directory or remote path of the cache.
      index: number of this process, from 0.
      count: number of processes that write the cache.
      hang_seconds: number of seconds without progress after which this process ends; None for no
        limit.
    """

    def end(how: RunEnd) -> None:
        if read_end(cache_dir) is None:  # The first process to end knows the cause.
            write_end(cache_dir, how)

    before: CacheProgress | None = None

    def note(now: CacheProgress, text: str) -> None:
        nonlocal before
        if now.waits:
            heartbeat.beat("waiting for other processes", done=text)
        elif now != before:
            heartbeat.beat(CACHING, done=text)
        before = now

    heartbeat = Heartbeat(index, count, hang_seconds, setting="--hang-seconds")
    if index == 0:
        (cache_dir / END_FILE).unlink(missing_ok=True)
    try:
        with heartbeat:
            heartbeat.record_in(cache_dir)
            yield note
    except signals.Stopped as stopped:
        end(RunEnd("stopped", signal.Signals(stopped.number).name))
        raise
    except Exception as error:
        end(failure(error))
        raise
    _remove(cache_dir / FOLDER, index, count)


def _remove(folder: AnyPath, index: int, count: int) -> None:
    """Removes the records of this process, and records left by earlier runs with more processes."""
    for file in folder.glob("[0-9]*"):
        number = int(file.name.partition(".")[0])
        if number == index or (index == 0 and number >= count):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # Records of other processes may remain.
        folder.rmdir()
