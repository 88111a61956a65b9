"""Passes what a run measures to its trackers, without waiting for them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf.run_end import RunEnd, failure
from mtf.storage import AnyPath
from mtf.trackers.tracker import Sample, TrackedRun, Tracker
from mtf.writing import write_atomically

IDS_FILE = "trackers.json"

# Calls that may wait for a tracker; more are dropped.
_MAX_WAITING = 10_000


class Tracking(contextlib.AbstractContextManager["Tracking"]):
    """The trackers of a run; if the block raises an error, they are told that the run failed.

    Args:
      trackers: the trackers.
      warn: prints a warning.
      seconds_to_end: how long to wait for the trackers at the end of the run.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker] = (),
        warn: Callable[[str], None] = print,
        seconds_to_end: float = 60.0,
    ) -> None:
        self._warn, self._seconds_to_end = warn, seconds_to_end
        self._workers: dict[str, _Worker] = {}
        counts: Counter[str] = Counter()
        for tracker in trackers:
            name = f"{type(tracker).__module__}.{type(tracker).__qualname__}"
            counts[name] += 1
            key = name if counts[name] == 1 else f"{name} {counts[name]}"
            self._workers[key] = _Worker(tracker, key, warn)

    def start(self, run_dir: AnyPath, run: TrackedRun) -> None:
        """Starts the trackers, each with its id in the run directory, if there is one."""
        file, lock = run_dir / IDS_FILE, threading.Lock()
        ids: dict[str, str] = {}
        if self._workers and file.is_file():
            ids = json.loads(file.read_text(encoding="utf-8"))

        def store(key: str, run_id: str) -> None:
            with lock:
                if ids.get(key) != run_id:
                    ids[key] = run_id
                    write_atomically(file, json.dumps(ids, indent=1) + "\n")

        for key, worker in self._workers.items():
            worker.start(dataclasses.replace(run, id=ids.get(key)), store)

    def log_metrics(self, place: str, step: int, metrics: Mapping[str, float]) -> None:
        """Passes on the metrics of a step under the names PLACE/METRIC."""
        self._call("log_metrics", step, {f"{place}/{name}": x for name, x in metrics.items()})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Passes on held-out examples with predictions."""
        self._call("log_samples", step, samples)

    def log_checkpoint(self, step: int, path: AnyPath) -> None:
        """Passes on where a checkpoint is."""
        self._call("log_checkpoint", step, str(path))

    def end(self, end: RunEnd) -> None:
        """Passes on how the run ended, and waits for the trackers to finish."""
        deadline = time.monotonic() + self._seconds_to_end
        for worker in self._workers.values():
            worker.end(end)
        for key, worker in self._workers.items():
            if not worker.wait(deadline - time.monotonic()):
                self._warn(
                    f"warning: {key} is not done {self._seconds_to_end:g} s after the end of the "
                    "run; what it has not stored yet may be lost"
                )
        self._workers = {}

    def _call(self, method: str, *arguments: Any) -> None:
        for worker in self._workers.values():
            worker.call(method, *arguments)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.end(failure(error))


class _Worker:
    """Calls a tracker's methods in a thread."""

    def __init__(self, tracker: Tracker, key: str, warn: Callable[[str], None]) -> None:
        self._tracker, self._key, self._warn = tracker, key, warn
        self._warned = False
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(_MAX_WAITING)

    def start(self, run: TrackedRun, store: Callable[[str, str], None]) -> None:
        # A daemon thread, so that a tracker that hangs does not keep the process from ending.
        work, name = self._work, f"tracker {self._key}"
        self._thread = threading.Thread(target=work, args=(run, store), name=name, daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> None:
        self._put((method, arguments))

    def end(self, end: RunEnd) -> None:
        self._put(("end", (end,)))
        self._put(None)

    def wait(self, seconds: float) -> bool:
        """Returns whether all calls have returned within the given time."""
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()

    def _put(self, call: tuple[str, tuple[Any, ...]] | None) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._fail(f"{_MAX_WAITING:,} calls wait for it", "drops what it cannot take")

    def _work(self, run: TrackedRun, store: Callable[[str, str], None]) -> None:
        is_started = False
        try:
            run_id = self._tracker.start(run)
            is_started = True
            if run_id is not None:
                store(self._key, run_id)
        except Exception as error:
            self._fail(_shown(error), "goes on without it" if not is_started else "goes on")
        while (call := self._calls.get()) is not None:
            if is_started:
                method, arguments = call
                try:
                    getattr(self._tracker, method)(*arguments)
                except Exception as error:
                    self._fail(f"{method}: {_shown(error)}", "goes on, and will not warn again")

    def _fail(self, reason: str, consequence: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"warning: the tracker {self._key} failed: {reason}; the run {consequence}")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
