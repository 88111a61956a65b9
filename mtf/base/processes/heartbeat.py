"""Records every few seconds what this process is doing, and ends the process if it hangs.

A separate thread does both, so the overhead per step is only a few assignments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.base.processes import rendezvous
from mtf.base.processes.records import FOLDER, ProcessState, write_state
from mtf.base.run_end import RunEnd, is_of_jax, read_end, write_end
from mtf.base.writing import restored_on_refusal
from mtf.storage import AnyPath, is_remote

# Default value of the settings `hang_seconds`.
HANG_SECONDS = 1800.0
# Seconds between writes of a process's record to a local directory and to a remote directory.
PERIOD, STORE_PERIOD = 10.0, 60.0

READING, TRAINING = "reading data", "training"
PREDICTING, WRITING = "predicting", "writing results"
CACHING = "writing examples"
# `hang_seconds` limits the phases in `_SHORT` and, in a run with one process, also those in
# `_WITH_OTHERS`. The limit is `_LONGER` times as long for all other phases, such as compiling,
# evaluating and saving. It is also longer for `_WITH_OTHERS` in a run with several processes, where
# a process in these phases may wait for one that, for example, compiles or saves.
_SHORT, _WITH_OTHERS, _LONGER = (READING, WRITING, CACHING), (TRAINING, PREDICTING), 4.0
_SECONDS_TO_WRITE = 10.0


class Heartbeat:
    """Tracks the progress of this process; as a context manager, records it and detects hangs.

    Args:
      index: the number of this process, from 0.
      count: the number of processes in the run.
      hang_seconds: if no progress is made for this many seconds, the stack traces of all threads
        are written to stderr and the process ends with exit status 1; None for no limit. The limit
        is four times as long while the process starts, compiles, evaluates, saves or may wait for
        other processes.
      setting: the name by which messages refer to this limit.
    """

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        hang_seconds: float | None = None,
        setting: str = "trainer.hang_seconds",
    ) -> None:
        self._hang_seconds, self._setting = hang_seconds, setting
        here, now = (socket.gethostname(), os.getpid()), time.time()
        self._state = ProcessState(index, count, *here, "starting", None, now, now, PERIOD)
        self._run_dir: AnyPath | None = None
        self._writer: threading.Thread | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def beat(self, phase: str, step: int | None = None, done: str = "") -> None:
        """Reports progress.

        Args:
          phase: the current activity, such as "training".
          step: the current step, or None if there are no steps.
          done: the work that has been completed so far, such as "2/5 tasks".
        """
        self._state = dataclasses.replace(
            self._state, phase=phase, step=step, done=done, progress=time.time()
        )

    @property
    def step(self) -> int | None:
        """The current step, or None if there are no steps."""
        return self._state.step

    def record_in(self, run_dir: AnyPath) -> None:
        """Starts recording this process's state in the run directory, which must exist."""
        self._run_dir = run_dir
        if is_remote(run_dir):
            self._state = dataclasses.replace(self._state, period=STORE_PERIOD)
        self._write()

    @contextlib.contextmanager
    def recorded_in(self, output_dir: AnyPath) -> Iterator[None]:
        """Records this process's state in `output_dir`; a UserError restores the earlier record."""
        with restored_on_refusal(output_dir / FOLDER / f"{self._state.index}.json"):
            self.record_in(output_dir)
            try:
                yield
            except UserError:
                self._run_dir = None
                if self._writer is not None:
                    self._writer.join(_SECONDS_TO_WRITE)
                raise

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        rendezvous.before_end(self._end_with_others)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(_SECONDS_TO_WRITE)
        self._write(ended=True)

    def _watch(self) -> None:
        """Writes this process's record, and ends the process if it hangs."""
        tick = min(1.0, (self._hang_seconds or 20.0) / 20)
        seen, written, idle = self._state, time.monotonic(), 0.0
        while not self._closed.wait(tick):
            # Ticks are counted to exclude time during which the process is suspended.
            idle = idle + tick if self._state is seen else 0.0
            seen, now = self._state, time.monotonic()
            if now - written >= seen.period:
                written = now
                self._write()
            is_short = seen.phase in _SHORT or (seen.phase in _WITH_OTHERS and seen.count == 1)
            patience = (self._hang_seconds or float("inf")) * (1.0 if is_short else _LONGER)
            if idle >= patience:
                return self._end(idle)

    def _write(self, *, ended: bool = False) -> None:
        """Writes this process's record, unless the previous write has not finished yet."""
        run_dir = self._run_dir
        if run_dir is not None and (self._writer is None or not self._writer.is_alive()):
            state = dataclasses.replace(self._state, time=time.time(), ended=ended)
            self._writer = _attempt(lambda: write_state(run_dir, state))

    def _end(self, idle: float) -> None:
        """Writes the stack traces of all threads to stderr, and ends this process."""
        self._write()
        state, limit = self._state, f"{self._setting} is {self._hang_seconds:,g}"
        said = (
            f"Process {state.index} (host {state.host}, process id {state.pid}) failed: no "
            f"progress for {idle:,.0f} s ({state.doing}; {limit}). Its output contains the stack "
            "traces of all threads."
        )
        run_dir = self._run_dir
        if run_dir is not None:
            _attempt(lambda: write_end(run_dir, RunEnd("failed", said)))
        faulthandler.dump_traceback(2, all_threads=True)
        print(f"error: {said}", file=sys.stderr, flush=True)
        signals.end_now(1)

    def _end_with_others(self, failure: str) -> None:
        """Records that this process ends because another process failed."""
        run_dir = self._run_dir
        if run_dir is None:
            return
        self._closed.set()
        end = read_end(run_dir)
        # The process that failed may have recorded why; JAX's error here is only a consequence.
        if end is None or is_of_jax(end):
            write_end(run_dir, RunEnd("failed", failure))
        self._write(ended=True)


def _attempt(work: Callable[[], object]) -> threading.Thread:
    """Runs `work` in a thread, ignores its errors, and waits at most `_SECONDS_TO_WRITE`."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS_TO_WRITE)
    return thread
