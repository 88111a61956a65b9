"""Records every few seconds what this process does, and ends it if it hangs.

A thread does both, so that a step costs only a few assignments.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from mtf.cluster import meeting
from mtf.cluster.process_files import (
    ProcessState,
    read_states,
    remove_state,
    stacks_file,
    write_state,
)
from mtf.errors import UserError
from mtf.run_end import RunEnd, write_end
from mtf.storage import AnyPath, StorePath
from mtf.writing import write_atomically

_Result = TypeVar("_Result")

# Seconds between writes of a process's file. In a store, each write is a request.
PERIOD, STORE_PERIOD = 10.0, 60.0

READING, TRAINING = "reading data", "training"
PREDICTING, WRITING = "predicting", "writing results"
CACHING = "writing examples"
# Phase → how many times as long as `hang_seconds` it may take. Other phases, such as compiling,
# evaluating and saving, make no progress for a long time. A process that waits in a step for one
# that hangs gives it the time to say so.
_WITH_OTHERS = {TRAINING: 1.1, PREDICTING: 1.1}
_PATIENCE = {READING: 1.0, WRITING: 1.0, CACHING: 1.0, **_WITH_OTHERS}
_OTHER_PATIENCE = 4.0
_SECONDS_TO_WRITE = 10.0


class Heartbeat:
    """The activity of this process. As a context manager, it is recorded and watched.

    Args:
      index: number of this process, from 0.
      count: number of processes of the run.
      devices: names of this process's devices.
      hang_seconds: seconds without progress after which the stacks of all threads are written to
        RUN_DIR/processes/INDEX.stacks.txt and the process ends with exit status 1; four times as
        many while it starts, compiles, evaluates or saves. None: it is not watched.
      setting: the name of the setting of `hang_seconds`.
    """

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        devices: Sequence[str] = (),
        hang_seconds: float | None = None,
        setting: str = "trainer.hang_seconds",
    ) -> None:
        self._index, self._count, self._devices = index, count, tuple(devices)
        self._hang_seconds, self._setting = hang_seconds, setting
        self._phase, self._progress = "starting", time.time()
        self.step: int | None = None
        self._done = ""
        self._num_beats, self._idle = 0, 0.0
        self._run_dir: AnyPath | None = None
        self._writer: threading.Thread | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def beat(self, phase: str, step: int | None = None, done: str = "") -> None:
        """Notes progress: what this process does now, in which step, and what it has done."""
        self._phase, self.step, self._done, self._progress = phase, step, done, time.time()
        self._num_beats += 1

    def record_in(self, run_dir: AnyPath) -> None:
        """Starts to write to the run directory, which must exist."""
        self._run_dir = run_dir
        self._write()

    @contextlib.contextmanager
    def recorded_in(self, output_dir: AnyPath) -> Iterator[None]:
        """Writes to the output directory of a job; after a UserError, it is as it was before."""
        states = {state.index: state for state in read_states(output_dir)}
        self.record_in(output_dir)
        try:
            yield
        except UserError:
            self._run_dir = None
            if self._writer is not None:
                self._writer.join(_SECONDS_TO_WRITE)
            if self._index in states:
                write_state(output_dir, states[self._index])
            else:
                remove_state(output_dir, self._index)
            raise

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        meeting.before_end(self._before_end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join(_SECONDS_TO_WRITE)
        self._write(ended=True)

    def _watch(self) -> None:
        """Writes this process's file, and ends the process if it hangs."""
        tick = min(1.0, (self._hang_seconds or 20.0) / 20)
        seen, written = self._num_beats, time.monotonic()
        while not self._closed.wait(tick):
            # The time of a process that was suspended does not count.
            self._idle = self._idle + tick if self._num_beats == seen else 0.0
            seen, now = self._num_beats, time.monotonic()
            period = STORE_PERIOD if isinstance(self._run_dir, StorePath) else PERIOD
            if now - written >= period:
                written = now
                self._write()
            if self._hang_seconds is not None and self._idle >= self._limit(self._hang_seconds):
                return self._end()

    def _limit(self, seconds: float) -> float:
        """Returns how long this process may make no progress."""
        run_dir, limit = self._run_dir, seconds * _PATIENCE.get(self._phase, _OTHER_PATIENCE)
        if run_dir is not None and self._phase in _WITH_OTHERS and self._idle >= limit:
            # It may wait for a process that compiles, evaluates or saves.
            states = _result(lambda: read_states(run_dir)) if self._count > 1 else None
            if any(state.phase not in _PATIENCE for state in states or ()):
                return limit * _OTHER_PATIENCE
        return limit

    def _state(self, ended: bool) -> ProcessState:
        return ProcessState(
            index=self._index,
            count=self._count,
            host=socket.gethostname(),
            pid=os.getpid(),
            devices=self._devices,
            phase=self._phase,
            step=self.step,
            progress=self._progress,
            time=time.time(),
            period=STORE_PERIOD if isinstance(self._run_dir, StorePath) else PERIOD,
            ended=ended,
            done=self._done,
        )

    def _write(self, *, ended: bool = False) -> None:
        """Writes this process's file, unless an earlier write still waits for the file system."""
        run_dir = self._run_dir
        if run_dir is None or (self._writer is not None and self._writer.is_alive()):
            return
        self._writer = _start(lambda: write_state(run_dir, self._state(ended)))
        self._writer.join(_SECONDS_TO_WRITE)

    def _end(self) -> None:
        """Writes the stacks, tells the other processes, and ends this one."""
        self._write()
        text = (
            f"no progress for {self._idle:,.0f} s ({self._state(ended=False).doing}; "
            f"{self._setting} is {self._hang_seconds:,g}). Stacks of all threads: "
            f"{self._write_stacks()}"
        )
        name = f"Process {self._index} (host {socket.gethostname()}, process id {os.getpid()})"
        run_dir, said = self._run_dir, f"{name} failed: {text}"
        if run_dir is not None:
            _start(lambda: write_end(run_dir, RunEnd("failed", said))).join(_SECONDS_TO_WRITE)
        print(f"error: {said}", file=sys.stderr, flush=True)
        _start(lambda: meeting.leave(text)).join(_SECONDS_TO_WRITE)
        os._exit(1)

    def _before_end(self, _: str) -> None:
        """Records that this process ends because another one did, and what it waited for."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._write(ended=True)
        if self._hang_seconds is not None and self._idle >= self._hang_seconds / 2:
            self._write_stacks()

    def _write_stacks(self) -> str:
        """Writes the stacks of all threads; returns where they are."""
        with tempfile.TemporaryFile() as temporary:
            faulthandler.dump_traceback(temporary, all_threads=True)
            temporary.seek(0)
            stacks = temporary.read()
        if self._run_dir is not None:
            file = stacks_file(self._run_dir, self._index)

            def write() -> bool:
                write_atomically(file, stacks)
                return True

            if _result(write):
                return str(file)
        os.write(2, stacks)
        return "above"


def _start(work: Callable[[], object]) -> threading.Thread:
    """Starts work on files or a connection, which may never end."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _result(work: Callable[[], _Result]) -> _Result | None:
    """Returns the result of work on files; None if it fails or takes too long."""
    results: list[_Result] = []
    _start(lambda: results.append(work())).join(_SECONDS_TO_WRITE)
    return results[0] if results else None
