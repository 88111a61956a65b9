"""How SIGINT (Ctrl-C), SIGTERM and SIGHUP stop a command. Imports the standard library only.

An exception that a signal handler raises may land in foreign code, which swallows it or aborts;
and while the main thread compiles or restores, no handler runs at all. So a command starts a
thread that hears signals at once, through `signal.set_wakeup_fd`, and no handler raises anything:

* by default a signal ends the process, with exit status 128 + its number (130, 143, 129);
* within `Interrupts` it is noted, and the work in progress asks for it when it can save;
* after `ending` it ends the process with the status given there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# How long the main thread may take to come to rest before the process ends without that.
_SECONDS_TO_REST = 0.3


class Stopped(BaseException):
    """A command was asked to stop by the signal `number`, and has reached a point where it can."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """Notes signals from `hold()` to the end of the context; a second Ctrl-C ends the process.

    Where the process does not `listen` (a script or a notebook), a second Ctrl-C raises
    KeyboardInterrupt. `number` is the last signal's, 0 before there is one.
    """

    def __init__(self, what_follows: str = "") -> None:
        """`what_follows` is said when a signal is heard, such as "saving after this step"."""
        self.number = 0
        self._what_follows = what_follows
        self._handlers: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """The name of the last signal, None before there is one."""
        return signal.Signals(self.number).name if self.number else None

    def raise_if_requested(self) -> None:
        """Raises `Stopped` once a signal has been heard."""
        if self.number:
            raise Stopped(self.number)

    def hear(self, number: int) -> bool:
        """Notes a signal; returns False for a second Ctrl-C, which stops at once."""
        if number == self.number:
            return number != signal.SIGINT
        self.number = number
        if self._what_follows:
            again = " (Ctrl-C again to stop now, unsaved)" if number == signal.SIGINT else ""
            _say(f"\n{signal.Signals(number).name}: {self._what_follows}{again}\n")
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.hear(number):
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Begins to note signals. Does nothing if it has begun."""
        global _active
        with _lock:
            if _active is self:
                return
            _active = self
        if threading.current_thread() is threading.main_thread():
            # Also where the process listens: jax.distributed has a handler of SIGTERM of its own.
            self._handlers = _install(self._handle if _wakeup is None else _rest)

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Ends noting signals."""
        global _active
        with _lock:
            if _active is self:
                _active = None
        if _wakeup is None:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._handlers = {}


# Guards the four below, and is held while a signal is dealt with.
_lock = threading.Lock()
_active: Interrupts | None = None
_decided: int | None = None
_unfinished: list[str] = []
_hint = ""

_wakeup: int | None = None
_leaving = False
_resting = threading.Event()


def listen() -> None:
    """Starts to hear signals for this process, which must be a command of ours.

    Signals that the process was started to ignore, as by `nohup`, stay ignored.
    """
    global _wakeup
    if _wakeup is not None:
        return
    heard, _wakeup = os.pipe()
    os.set_blocking(_wakeup, False)
    threading.Thread(target=_watch, args=(heard,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    _install(_rest)
    atexit.register(_ignore)  # Functions that are registered later run before it.


def hint(text: str) -> None:
    """Sets what is said when a signal ends the process, such as how to go on."""
    global _hint
    with _lock:
        _hint = text


def ending(status: int) -> int:
    """Sets the exit status: from now on a signal only ends the process sooner."""
    global _decided
    with _lock:
        _decided = status
    return status


@contextlib.contextmanager
def removed_on_stop(path: str | os.PathLike[str]) -> Iterator[None]:
    """Has a file or folder removed if a signal ends the process within the block."""
    name = os.fspath(path)
    with _lock:
        _unfinished.append(name)
    try:
        yield
    finally:
        with _lock:
            _unfinished.remove(name)


def _install(handle: Any) -> dict[int, Any]:
    """Sets the handler of each signal that is not ignored; returns those before."""
    before = {}
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[int(number)] = signal.signal(number, handle) or signal.SIG_DFL
            # Foreign code in the middle of a system call need not know of it.
            signal.siginterrupt(number, False)
    return before


def _ignore() -> None:
    """Keeps the exit status, while Python takes itself down, from becoming that of a signal."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _watch(heard: int) -> None:
    """Deals with the signals that Python writes to the pipe as they come."""
    while True:
        for number in os.read(heard, 64):
            if number in NUMBERS:
                with _lock:
                    if _active is None or not _active.hear(number):
                        _leave(number)


def _leave(number: int) -> NoReturn:
    """Ends the process without unwinding any foreign code."""
    global _leaving
    _leaving = True
    # The main thread shall not use what is taken away below.
    signal.pthread_kill(threading.main_thread().ident or 0, number)
    _resting.wait(_SECONDS_TO_REST)
    for path in _unfinished:
        try:
            os.unlink(path)
        except OSError:
            import shutil

            shutil.rmtree(path, ignore_errors=True)
    if os.isatty(2):
        _say("\x1b[?25h")  # A progress bar hides the cursor.
    if _decided is None:
        _say(f"{farewell(number)}\n")
    os._exit(128 + number if _decided is None else _decided)


def farewell(number: int) -> str:
    """Returns what a command says when a signal ends it."""
    name = signal.Signals(number).name
    what = "Interrupted" if number == signal.SIGINT else f"Stopped by {name}"
    return f"{what}: {_hint}." if _hint else f"{what}."


def _rest(number: int, frame: FrameType | None) -> None:
    """The handler in the main thread: keeps it out of the way while the process ends."""
    if _leaving:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _resting.set()
        while True:
            time.sleep(60)


def _say(text: str) -> None:
    """Writes to stderr, whatever the main thread is doing with it."""
    with contextlib.suppress(OSError):  # A terminal that is gone.
        os.write(2, text.encode())
