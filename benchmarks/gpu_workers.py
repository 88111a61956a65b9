"""The processes of gpu.py: the driver asks, workers answer, each message a line of JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What frameworks say when the device's memory does not suffice.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "ALLOC_FAILED")


class OutOfTime(Exception):
    """The time of the whole run is over."""


class Failed(Exception):
    """A worker could not do what it was asked; `memory`: because of the device's memory."""

    def __init__(self, text: str, memory: bool = False):
        super().__init__(text)
        self.memory = memory


class Worker:
    """A process that runs a script, started again if it has ended."""

    def __init__(self, script: Path, environment: Mapping[str, str], deadline: float):
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._script = script
        self._environment = {"PYTHONPATH": os.pathsep.join(paths), **environment}
        self._deadline = deadline
        self._unread = b""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._unread = b""
            self._process = subprocess.Popen(
                [sys.executable, str(self._script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        return self._process

    def ask(self, do: str, *, limit: float | None = None, **settings: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer; see `receive`."""
        self.send(do, **settings)
        return self.receive(limit)

    def send(self, do: str, **settings: Any) -> None:
        """Sends a request."""
        stdin = self._started().stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` says why
            stdin.write(json.dumps({"do": do, **settings}).encode() + b"\n")
            stdin.flush()

    def receive(self, limit: float | None = None) -> dict[str, Any]:
        """Returns an answer. Raises Failed, after `limit` seconds too, and OutOfTime."""
        started = time.monotonic()
        ends = min(self._deadline, started + (limit or float("inf")))
        process = self._started()
        assert process.stdout is not None
        fd = process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([fd], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                self.end()
                if time.monotonic() >= self._deadline:
                    raise OutOfTime
                raise Failed(f"took more than {limit:.0f} s")
            more = os.read(fd, 1 << 16)
            if not more:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                self.end()
                raise Failed(f"the process ended with exit status {process.returncode}")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer["memory"])
        return answer

    def end(self) -> None:
        """Kills the process and those that it started, such as compilers."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Side:
    """What a worker does; each request is a method."""

    def __init__(self) -> None:
        self._built: dict[str, tuple[Callable[[], None], Callable[[], object]]] = {}

    def block(self, calls: int, warm_up: int = 1, name: str = "") -> dict[str, Any]:
        """Times calls of what was built; returns the seconds of one."""
        call, wait = self._built[name]
        for _ in range(warm_up):
            call()
        wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        return {"seconds": (time.perf_counter() - started) / calls}

    def built(
        self,
        call: Callable[[], None],
        wait: Callable[[], object] = lambda: None,
        name: str = "",
        **about: Any,
    ) -> dict[str, Any]:
        """Keeps `call` for `block`. Returns the seconds of its first call and of a later one.

        `wait` waits until the device has finished what was called.
        """
        self._built[name] = call, wait
        first = self.block(1, warm_up=0, name=name)["seconds"]
        return {"first": first, **self.block(1, warm_up=2, name=name), **about}

    def free(self) -> dict[str, Any]:
        """Gives the memory of what was built back to the framework."""
        self._built.clear()
        gc.collect()
        return {}


def serve(make_side: Callable[[], Side]) -> None:
    """Answers requests on standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries that print do not disturb the answers.
    side = make_side()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = getattr(side, message.pop("do"))(**message)
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
            memory = any(word in text for word in _OUT_OF_MEMORY)
            answer = {"error": " ".join(text.split())[:300], "memory": memory}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
