"""Records how a run ended, in RUN_DIR/end.json; `mtf.status` shows it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Literal

from mtf.errors import UserError
from mtf.storage import AnyPath
from mtf.writing import named_in_store, write_atomically

END_FILE = "end.json"
# Set where a scheduler starts a run again only if it fails, as JobSet does: a run that a signal
# stopped then ends with this exit status, and not with 0.
STOPPED_FAILS, STOPPED_STATUS = "MTF_STOPPED_FAILS", 128 + signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """How a run ended.

    Attributes:
      how: "finished": it reached its last step. "stopped": a signal ended it, and the state is
        saved. "failed": an error ended it.
      reason: the name of the signal, or the error; None if the run finished.
      time: when it ended, in seconds since 1970.
    """

    how: Literal["finished", "stopped", "failed"]
    reason: str | None = None
    time: float = dataclasses.field(default_factory=time.time)


def failure(error: BaseException) -> RunEnd:
    """Returns the end of a run that an error ended."""
    first_line = str(error).strip().partition("\n")[0]
    return RunEnd("failed", f"{type(error).__name__}: {first_line}")


def write_end(run_dir: AnyPath, end: RunEnd) -> None:
    """Writes how a run ended; does nothing if the directory cannot be written to."""
    with contextlib.suppress(OSError):
        write_atomically(run_dir / END_FILE, json.dumps(dataclasses.asdict(end)) + "\n")


def read_end(run_dir: AnyPath) -> RunEnd | None:
    """Returns how the last run in a directory ended; None if it is running or was killed."""
    try:
        return RunEnd(**json.loads((run_dir / END_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def exit_status_of(run_dir: AnyPath) -> int:
    """Returns the exit status of a run that has ended in order."""
    end = read_end(run_dir) if os.environ.get(STOPPED_FAILS) else None
    return STOPPED_STATUS if end is not None and end.how == "stopped" else 0


@contextlib.contextmanager
def failure_recorded(run_dir: AnyPath) -> Iterator[None]:
    """Deletes the record of an earlier run, and writes one if the block raises an error.

    After a UserError, which is raised before a run starts, the earlier record is there again.
    """
    earlier = read_end(run_dir)
    (run_dir / END_FILE).unlink(missing_ok=True)
    try:
        with named_in_store(run_dir):
            yield
    except UserError:
        if earlier is not None:
            write_end(run_dir, earlier)
        raise
    except Exception as error:
        write_end(run_dir, failure(error))
        raise
