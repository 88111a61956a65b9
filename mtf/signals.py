"""How SIGINT (Ctrl-C), SIGTERM and SIGHUP stop a command. Imports the standard library only.

Foreign code may swallow an exception raised by a signal handler, and no handler runs while the main
thread compiles or restores. So a thread receives signals through `signal.set_wakeup_fd`:

* by default, a signal ends the process with exit status 128 + its number (130, 143, 129);
* within `Interrupts`, it is recorded, and the code in progress checks for it when it can save;
* after `ending`, it ends the process with the status passed there.
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

from mtf import malloc

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# How long `_leave` waits for the main thread to flush stdout and stop.
_SECONDS_TO_REST = 0.3
# How often a folder is removed, because other threads create it again, and how long to wait for it.
_MAX_REMOVALS = 40
_SECONDS_PER_REMOVAL = 0.03


class Stopped(BaseException):
    """Raised where a command can stop after the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """Records signals from `hold()` to the end of the context; a second Ctrl-C ends the process.

    In a process that does not `listen` (a script or a notebook), a second Ctrl-C raises
    KeyboardInterrupt. `what_follows` is printed when a signal arrives, such as "saving after this
    step". `number` is the last signal's number, or 0.
    """

    def __init__(self, what_follows: str = "") -> None:
        self.number = 0
        self._what_follows = what_follows
        self._handlers: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """The name of the last signal, or None."""
        return signal.Signals(self.number).name if self.number else None

    def raise_if_requested(self) -> None:
        """Raises `Stopped` after a signal."""
        if self.number:
            raise Stopped(self.number)

    def record(self, number: int) -> bool:
        """Records a signal; returns False for a second Ctrl-C, which stops at once."""
        if number == self.number:
            return number != signal.SIGINT
        self.number = number
        if self._what_follows:
            again = " (Ctrl-C again stops without saving)" if number == signal.SIGINT else ""
            _say(f"\n{signal.Signals(number).name}: {self._what_follows}{again}\n")
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.record(number):
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Starts to record signals, unless it has started already."""
        global _active
        with _lock:
            if _active is self:
                return
            _active = self
        if threading.current_thread() is threading.main_thread():
            # Also in a process that listens: jax.distributed installs a handler of SIGTERM.
            self._handlers = _install(self._handle if _wakeup is None else _rest)

    def release(self) -> None:
        """Stops recording signals."""
        global _active
        with _lock:
            if _active is self:
                _active = None
        if _wakeup is None:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._handlers = {}

    def __exit__(self, *_: object) -> None:
        self.release()


# Guards the next four variables, and is held while a signal is processed.
_lock = threading.Lock()
_active: Interrupts | None = None
_decided: int | None = None
_unfinished: list[str] = []
_hint = ""

_wakeup: int | None = None
_leaving = False
_resting = threading.Event()


def listen() -> None:
    """Starts to receive signals in this process, which must be one of mtf's commands.

    Signals that were ignored when the process started, as with `nohup`, stay ignored.
    """
    global _wakeup
    if _wakeup is not None:
        return
    malloc.use_one_arena()  # before the first thread
    received, _wakeup = os.pipe()
    os.set_blocking(_wakeup, False)
    threading.Thread(target=_watch, args=(received,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    _install(_rest)
    atexit.register(_ignore)  # Functions that are registered later run first.


def hint(text: str) -> None:
    """Sets what is printed when a signal ends the process, such as how to resume."""
    global _hint
    with _lock:
        _hint = text


def ending(status: int) -> int:
    """Sets and returns the exit status: from now on, a signal ends the process with it."""
    global _decided
    with _lock:
        _decided = status
    return status


@contextlib.contextmanager
def removed_on_stop(path: str | os.PathLike[str]) -> Iterator[None]:
    """Removes a file or folder if a signal ends the process within the block."""
    name = os.fspath(path)
    with _lock:
        _unfinished.append(name)
    try:
        yield
    finally:
        with _lock:
            _unfinished.remove(name)


def _install(handle: Any) -> dict[int, Any]:
    """Sets the handler of each signal that is not ignored, and returns the previous handlers."""
    before = {}
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[int(number)] = signal.signal(number, handle) or signal.SIG_DFL
            # Do not interrupt system calls of foreign code.
            signal.siginterrupt(number, False)
    return before


def _ignore() -> None:
    """Ignores signals while the interpreter shuts down, so that the exit status stays."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _watch(received: int) -> None:
    """Processes the signals that Python writes to the pipe."""
    while True:
        for number in os.read(received, 64):
            if number in NUMBERS:
                with _lock:
                    if _active is None or not _active.record(number):
                        _leave(number)


def _leave(number: int) -> NoReturn:
    """Ends the process without unwinding any foreign code."""
    global _leaving
    _leaving = True
    # Stop the main thread, which might use the files removed below.
    signal.pthread_kill(threading.main_thread().ident or 0, number)
    _resting.wait(_SECONDS_TO_REST)
    for path in _unfinished:
        try:
            os.unlink(path)
        except OSError:
            _remove_folder(path)
    if os.isatty(2):
        _say("\x1b[?25h")  # A progress bar hides the cursor.
    if _decided is None:
        _say(f"{farewell(number)}\n")
    os._exit(128 + number if _decided is None else _decided)


def _remove_folder(path: str) -> None:
    """Removes a folder in which other threads may still write files."""
    import shutil

    for _ in range(_MAX_REMOVALS):
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(_SECONDS_PER_REMOVAL)
        if not os.path.lexists(path):
            return


def farewell(number: int) -> str:
    """Returns the message of a command that a signal ends."""
    name = signal.Signals(number).name
    what = "Interrupted" if number == signal.SIGINT else f"Stopped by {name}"
    return f"{what}: {_hint}." if _hint else f"{what}."


def _rest(number: int, frame: FrameType | None) -> None:
    """Handles a signal in the main thread: stops the thread while the process ends."""
    if _leaving:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _resting.set()
        while True:
            time.sleep(60)


def _say(text: str) -> None:
    """Writes to stderr, even while the main thread uses it."""
    with contextlib.suppress(OSError):  # The terminal is gone.
        os.write(2, text.encode())
