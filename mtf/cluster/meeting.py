"""The processes of a run meet before they start JAX, and learn at once when one of them ends.

Process 0 listens; each other process keeps a connection to it. Messages are lines of JSON. Process
0 compares what the processes run, and tells all of them when a process has failed, has died (its
connection closes) or does not answer (no line for `SILENCE` seconds). The processes then end.
Without this, JAX would wait for minutes, and abort without a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn

from mtf.cluster.places import Place
from mtf.errors import UserError

# Seconds between signs of life; and without any, after which a process counts as dead.
BEAT, SILENCE = 5.0, 30.0
# Seconds for which a process waits for all others to come, and at the end to leave.
PATIENCE, PARTING = 300.0, 60.0
_SECONDS_FOR_NEWS = 2.0
# Seconds after which a process says for which others it waits.
_QUIET = 5.0

Facts = dict[str, Any]
_MAX_LINE = 2**26


class Meeting:
    """The connection of this process to the other processes of a run.

    Args:
      place: which process this is.
      facts: what must be the same in all processes: name → text or lines of text.
      shared: what process 0 tells the others; ignored in the others.
      patience: seconds to wait for the other processes.

    Raises:
      UserError: a process did not come, or runs something else. All processes raise it.
    """

    def __init__(
        self, place: Place, facts: Facts, shared: Facts, *, patience: float = PATIENCE
    ) -> None:
        self._place, self._patience = place, patience
        self._name = f"host {socket.gethostname()}, process id {os.getpid()}"
        self._facts = {"--process-count": str(place.count), **facts}
        self._outcome: dict[str, Any] | None = None
        self._ready, self._all_left = threading.Event(), threading.Event()
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._members: dict[int, _Member] = {}
        self._leaving = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem: str | None = None
        work = self._connect if place.index else functools.partial(self._listen, shared)
        threading.Thread(target=self._run, args=(work,), name="meeting", daemon=True).start()
        self._ready.wait()
        assert self._outcome is not None
        if "error" in self._outcome:
            raise UserError(self._outcome["error"])
        self.shared: Facts = self._outcome["shared"]
        global _current
        _current = self

    def leave(self, problem: str | None = None, *, is_news: bool = True) -> None:
        """Says that this process ends, with a problem if there is one.

        If the problem `is_news` is False, it may follow from the end of another process, which is
        waited for: this process then ends with that news.
        """
        if problem is not None and not is_news:
            time.sleep(_SECONDS_FOR_NEWS)
        self._leaving = True
        if problem is None and self._place.index == 0:
            self._all_left.wait(PARTING)
        elif self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._leave(problem), self._loop).result(PARTING)

    def announce(self, value: Any) -> None:
        """Sends a value to the other processes, from process 0."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._tell_all({"news": value}), self._loop).result()

    def announced(self, seconds: float) -> Any:
        """Returns the next value that process 0 announced, or None after so many seconds."""
        try:
            return self._news.get(timeout=seconds)
        except queue.Empty:
            return None

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            await work()

        try:
            asyncio.run(run())
        except Exception as error:  # Whatever it is, the processes must not wait for each other.
            self._decide({"error": f"The processes cannot meet at {self._place.address}: {error}"})

    def _decide(self, outcome: dict[str, Any]) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._ready.set()

    async def _leave(self, problem: str | None) -> None:
        if problem is None:
            await self._tell_all({"left": True})
        elif self._place.index == 0:
            await self._tell_all({"end": f"Process 0 ({self._name}) failed: {problem}"})
        else:
            await self._tell_all({"failed": problem})

    # Process 0.

    async def _listen(self, shared: Facts) -> None:
        server = await asyncio.start_server(
            self._serve, port=self._place.port, limit=_MAX_LINE, reuse_address=True
        )
        async with server:
            beats = asyncio.ensure_future(self._beat())
            started, told = time.monotonic(), False
            while (missing := set(range(1, self._place.count)) - self._members.keys()) and (
                self._problem is None
            ):
                waited = time.monotonic() - started
                if waited > self._patience:
                    self._problem = self._absence(missing)
                elif waited > _QUIET and not told:
                    told = self._tell_wait(_which(missing))
                await asyncio.sleep(0.05)
            outcome = {"shared": shared} if self._problem is None else {"error": self._problem}
            await self._tell_all({**outcome, "name": self._name})
            self._decide(outcome)
            while self._problem is None and not self._all_left.is_set():
                await asyncio.sleep(0.05)
            beats.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would print it at the end.
            await self._attend(reader, writer)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _next(reader)
        if not {"index", "name", "facts"} <= hello.keys():
            return writer.close()  # Not one of our processes.
        member = _Member(hello["name"], writer)
        index, other = hello["index"], self._members.get(hello["index"])
        if other is not None or index == 0:
            name = self._name if other is None else other.name
            text = f"Two processes have the index {index}: {name} and {member.name}."
            return await _send(writer, {"error": text})
        self._members[index] = member
        self._problem = self._problem or self._difference(index, member, hello["facts"])
        end = await _next(reader)
        if "left" in end:
            member.left = True
            if all(member.left for member in self._members.values()):
                self._all_left.set()
        elif self._outcome is None:
            del self._members[index]  # It may be started again.
        elif self._problem is None:
            how = f"failed: {end['failed']}" if "failed" in end else end["lost"]
            text = f"Process {index} ({member.name}) {how}"
            await self._tell_all({"end": text})
            _end(text)

    async def _tell_all(self, message: dict[str, Any]) -> None:
        for member in list(self._members.values()):
            if not member.left:
                await _send(member.writer, message)

    def _absence(self, missing: set[int]) -> str:
        return (
            f"Waited {self._patience:g} s at {self._place.address}, but {_which(missing)} of "
            f"{self._place.count} did not come. Start all of them, with the same address, and see "
            "their logs."
        )

    def _tell_wait(self, which: str) -> bool:
        """Says for which processes this one waits, and what to do; returns True."""
        place = self._place
        print(
            f"Process {place.index} of {place.count} ({place.found_in}) waits for {which} at "
            f"{place.address}, at most {self._patience:,.0f} s. Start the same command on every "
            "host, for example with python -m mtf.launch.",
            file=sys.stderr,
            flush=True,
        )
        return True

    def _difference(self, index: int, member: _Member, facts: Facts) -> str | None:
        """Returns how a process differs from process 0, or None."""
        for name, wanted in self._facts.items():
            if changes := _changes(wanted, facts.get(name), index):
                return (
                    f"Process {index} ({member.name}) and process 0 ({self._name}) differ in "
                    f"{name}:\n  {changes}\nStart all processes with the same command, code and "
                    "packages."
                )
        return None

    # The other processes.

    async def _connect(self) -> None:
        try:
            reader, writer = await self._reach()
        except OSError as error:
            return self._decide(
                {
                    "error": f"Waited {self._patience:g} s for process 0 at "
                    f"{self._place.address}, but it did not come ({error}). Start it, and see its "
                    "log."
                }
            )
        self._members[0] = _Member(self._place.host, writer)
        hello = {"index": self._place.index, "name": self._name, "facts": self._facts}
        await _send(writer, hello)
        beats = asyncio.ensure_future(self._beat())
        outcome = await _next(reader)
        if "lost" in outcome:
            text = f"Process 0 ({self._place.host}) {outcome['lost']} It waited for the others."
            return self._decide({"error": text})
        self._decide(outcome)
        while "news" in (end := await _next(reader)):
            self._news.put(end["news"])
        beats.cancel()
        if "error" not in outcome and not self._leaving:
            _end(end.get("end") or f"Process 0 ({outcome['name']}) {end['lost']}")

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to process 0, which may start later; raises OSError if it does not come."""
        started, told = time.monotonic(), False
        while True:
            try:
                return await asyncio.open_connection(
                    self._place.host, self._place.port, limit=_MAX_LINE
                )
            except OSError:
                waited = time.monotonic() - started
                if waited > self._patience:
                    raise
                if waited > _QUIET and not told:
                    told = self._tell_wait("process 0")
                await asyncio.sleep(0.2)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            await self._tell_all({})


class _Member:
    """Another process, to which this one is connected."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.name, self.writer = name, writer
        self.left = False


# The meeting of this process, and what is called before it ends because another process did.
_current: Meeting | None = None
_before_end: list[Callable[[str], None]] = []


def before_end(call: Callable[[str], None]) -> None:
    """Calls a function with the news if this process ends because another one did."""
    _before_end.append(call)


def leave(problem: str) -> None:
    """Says that this process ends with a problem; does nothing if it is alone."""
    if _current is not None:
        _current.leave(problem)


def _end(text: str) -> NoReturn:
    """Ends this process, whose main thread may wait for the process that has ended."""
    for call in _before_end:
        with contextlib.suppress(Exception):
            call(text)
    print(f"error: {text}\nThis process cannot go on without it.", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Sends a line; a connection that is closed is noticed by the reader."""
    with contextlib.suppress(OSError):
        writer.write(json.dumps(message).encode() + b"\n")
        await writer.drain()


async def _next(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Returns the next message; if the connection ends, {"lost": how}."""
    message: Any = {}
    while message == {}:  # a sign of life
        try:
            line = await asyncio.wait_for(reader.readline(), SILENCE)
            message = json.loads(line)
        except TimeoutError:
            return {"lost": f"did not answer for {SILENCE:g} s."}
        except (OSError, ValueError):
            return {"lost": "died."}
    return message if isinstance(message, dict) else {"lost": "died."}


def _which(processes: set[int]) -> str:
    """Returns the numbers of processes as text."""
    shown = ", ".join(map(str, sorted(processes)[:10])) + ", …" * (len(processes) > 10)
    return f"process {shown}" if len(processes) == 1 else f"processes {shown}"


def _changes(wanted: str | Sequence[str], found: str | Sequence[str] | None, index: int) -> str:
    """Returns the first lines that differ, or ""."""
    if wanted == found:
        return ""
    here, there = ([x] if isinstance(x, str) else list(x or ()) for x in (wanted, found))
    lines = [f"process 0: {line}" for line in here if line not in there][:5]
    lines += [f"process {index}: {line}" for line in there if line not in here][:5]
    return "\n  ".join(lines)
