"""Sends a run's metrics, samples and checkpoint paths to its trackers without waiting for them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf.base import strict_json
from mtf.base.run_end import RunEnd, failure
from mtf.base.writing import write_atomically
from mtf.storage import AnyPath
from mtf.training.trackers.tracker import Sample, TrackedRun, Tracker

IDS_FILE = "trackers.json"
_Calls = queue.SimpleQueue[tuple[str, tuple[Any, ...]]]


class Tracking(contextlib.AbstractContextManager["Tracking"]):
    """The trackers of a run; errors raised in the `with` block are reported to them.

    Args:
      trackers: the trackers.
      warn: a function that prints a warning.
      seconds_to_end: the number of seconds to wait for the trackers at the end of the run.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker] = (),
        warn: Callable[[str], None] = print,
        seconds_to_end: float = 60.0,
    ) -> None:
        self._trackers, self._warn, self._seconds_to_end = trackers, warn, seconds_to_end
        self._running: dict[str, tuple[threading.Thread, _Calls]] = {}

    def start(self, run_dir: AnyPath, run: TrackedRun) -> None:
        """Starts each tracker with the id from its earlier start, if the run directory has one."""
        file, lock = run_dir / IDS_FILE, threading.Lock()
        is_used = self._trackers and file.is_file()
        ids = strict_json.read_own(file, "Delete it to start new runs.") if is_used else {}

        def serve(key: str, tracker: Tracker, calls: _Calls) -> None:
            """Calls a tracker's methods from `start` to `end`; stops if `start` fails."""
            method, has_warned = "", False
            while method != "end":
                method, arguments = calls.get()
                try:
                    result = getattr(tracker, method)(*arguments)
                    if method == "start" and result not in (None, arguments[0].id):
                        with lock:
                            ids[key] = result
                            write_atomically(file, json.dumps(ids, indent=1) + "\n")
                except Exception as error:
                    if not has_warned:
                        reason = f"{method}: {failure(error).reason}"
                        text = f"warning: the tracker {key} failed: {reason}; the run continues"
                        self._warn(text)
                    has_warned = True
                    if method == "start":
                        return

        names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in self._trackers]
        for i, (name, tracker) in enumerate(zip(names, self._trackers, strict=True)):
            number = names[: i + 1].count(name)
            key, calls = name if number == 1 else f"{name} {number}", _Calls()
            calls.put(("start", (dataclasses.replace(run, id=ids.get(key)),)))
            # A daemon thread cannot prevent the process from ending.
            thread = threading.Thread(target=serve, args=(key, tracker, calls), daemon=True)
            self._running[key] = thread, calls
            thread.start()

    def log_metrics(self, place: str, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of a step under the names PLACE/METRIC."""
        self._call("log_metrics", step, {f"{place}/{name}": x for name, x in metrics.items()})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Sends held-out examples with predictions."""
        self._call("log_samples", step, samples)

    def log_checkpoint(self, step: int, path: AnyPath) -> None:
        """Sends the path of a checkpoint."""
        self._call("log_checkpoint", step, str(path))

    def end(self, end: RunEnd) -> None:
        """Reports how the run ended, and waits for the trackers to finish."""
        deadline = time.monotonic() + self._seconds_to_end
        self._call("end", end)
        for key, (thread, _) in self._running.items():
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                self._warn(
                    f"warning: {key} has not finished {self._seconds_to_end:g} s after the end of "
                    "the run; data that it has not stored yet may be lost"
                )
        self._running = {}

    def _call(self, method: str, *arguments: Any) -> None:
        for _, calls in self._running.values():
            calls.put((method, arguments))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.end(failure(error))
