"""Records how a run ended in RUN_DIR/end.json, which `mtf status` reads."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Literal

from mtf.base import strict_json
from mtf.base.errors import StoreFailedError, UserError
from mtf.base.writing import restored_on_refusal, write_atomically
from mtf.storage import AnyPath
from mtf.storage.errors import without_user

END_FILE = "end.json"
# Environment variable for schedulers, such as JobSet, that restart a run only if it fails. If this
# variable is set, a run that a signal stopped exits with this status instead of 0.
STOPPED_FAILS, STOPPED_STATUS = "MTF_STOPPED_FAILS", 128 + signal.SIGTERM
# A compiled function may raise an error of XLA as a ValueError, which begins with its status.
_OF_JAX = re.compile(r"JaxRuntimeError: |ValueError: [A-Z_]{5,}: ")


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """A record of how and when a run ended.

    Attributes:
      how: "finished" after the last step, "stopped" if a signal ended the run and its state was
        saved, or "failed" if an error ended the run.
      reason: the name of the signal, or the error; None if the run finished.
      time: the time at which the run ended, in seconds since 1970.
    """

    how: Literal["finished", "stopped", "failed"]
    reason: str | None = None
    time: float = dataclasses.field(default_factory=time.time)


def failure(error: BaseException) -> RunEnd:
    """Returns the record of a run that failed with `error`."""
    first_line = str(error).strip().partition("\n")[0]
    return RunEnd("failed", without_user(f"{type(error).__name__}: {first_line}"))


def is_of_jax(end: RunEnd) -> bool:
    """Returns whether JAX raised the error, as it does when another process has died."""
    return end.reason is not None and _OF_JAX.match(end.reason) is not None


def write_end(run_dir: AnyPath, end: RunEnd) -> None:
    """Writes how a run ended; does nothing if the directory cannot be written to."""
    with contextlib.suppress(OSError):
        write_atomically(run_dir / END_FILE, json.dumps(dataclasses.asdict(end)) + "\n")


def read_end(run_dir: AnyPath) -> RunEnd | None:
    """Returns how the last run in a directory ended; None if the run is running or was killed."""
    try:
        return RunEnd(**strict_json.read_object(run_dir / END_FILE))
    except (OSError, ValueError, TypeError):
        return None


def exit_status_of(run_dir: AnyPath) -> int:
    """Returns the exit status of a run that finished, or that a signal stopped after saving."""
    end = read_end(run_dir) if os.environ.get(STOPPED_FAILS) else None
    return STOPPED_STATUS if end is not None and end.how == "stopped" else 0


@contextlib.contextmanager
def failure_recorded(run_dir: AnyPath) -> Iterator[None]:
    """Deletes the record of an earlier run, and writes a new one if the block raises an error.

    A UserError means that the run did not start, so the earlier record is restored.
    """
    with restored_on_refusal(run_dir / END_FILE):
        (run_dir / END_FILE).unlink(missing_ok=True)
        try:
            yield
        except (UserError, StoreFailedError):
            raise
        except Exception as error:
            if read_end(run_dir) is None:  # Otherwise another process has recorded its failure.
                write_end(run_dir, failure(error))
            raise
