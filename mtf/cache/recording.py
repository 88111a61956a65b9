"""What the processes that write a cache do, as recorded in it.

A cache that is complete has no such files: it has the same files however it was written.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mtf import signals
from mtf.cluster import meeting
from mtf.cluster.heartbeat import CACHING, Heartbeat
from mtf.cluster.process_files import FOLDER
from mtf.run_end import END_FILE, RunEnd, failure, read_end, write_end
from mtf.storage import AnyPath
from mtf.writing import LOCK_FILE, named_in_store

if TYPE_CHECKING:
    from mtf.cache.build import CacheProgress


def is_record(name: str) -> bool:
    """Returns whether a file of a cache, or a file in it, only says who writes the cache."""
    return name.partition("/")[0] in (LOCK_FILE, END_FILE, FOLDER)


@contextlib.contextmanager
def recorded(
    cache_dir: AnyPath, index: int, count: int, hang_seconds: float | None
) -> Iterator[Callable[[CacheProgress, str], None]]:
    """Records in a cache what this process does during the block, and how it ends if it fails.

    Yields a function that notes progress, and the text that describes it.

    Args:
      cache_dir: directory or address of the cache.
      index: number of this process, from 0.
      count: number of processes that write the cache.
      hang_seconds: seconds without progress after which this process ends; None: it is not watched.
    """

    def end(how: RunEnd) -> None:
        if read_end(cache_dir) is None:  # The first process to end knows why.
            write_end(cache_dir, how)

    before: CacheProgress | None = None

    def note(now: CacheProgress, text: str) -> None:
        nonlocal before
        if now.waits:
            heartbeat.beat("waiting for other processes", done=text)
        elif now != before:
            heartbeat.beat(CACHING, done=text)
        before = now

    heartbeat = Heartbeat(index, count, (), hang_seconds, setting="--hang-seconds")
    if index == 0:
        (cache_dir / END_FILE).unlink(missing_ok=True)
    meeting.before_end(lambda news: end(RunEnd("failed", news)))
    try:
        with contextlib.nullcontext() if index else named_in_store(cache_dir), heartbeat:
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
    """Removes the records of this process, and those of earlier commands with more processes."""
    for file in folder.glob("[0-9]*"):
        number = int(file.name.partition(".")[0])
        if number == index or (index == 0 and number >= count):
            file.unlink(missing_ok=True)
    if isinstance(folder, Path):
        with contextlib.suppress(OSError):  # Other processes have not removed theirs yet.
            folder.rmdir()
