"""Handles SIGINT (Ctrl-C), SIGTERM and SIGHUP in commands. Imports only the standard library.

Libraries may swallow an exception that a signal handler raises, and no handler runs while the main
thread compiles or restores. Therefore, a separate thread receives signals through
`signal.set_wakeup_fd` and handles them as follows:

* By default, a signal ends the process with exit status 128 plus its number (130, 143 or 129).
* Within `Interrupts`, a signal is recorded, and the job checks for it when it can save its state.
* After `ending(status)`, a signal ends the process with that status.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from mtf.base import malloc

# Environment variable with the id of the process that started this one and must outlive it.
LAUNCHER = "MTF_LAUNCHER"
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The number of seconds that `_leave` waits for the main thread to flush stdout and stop.
_SECONDS_TO_REST = 0.3
# How many times to try to remove a folder to which other threads still write, and the seconds
# between two attempts.
_MAX_REMOVALS = 40
_SECONDS_PER_REMOVAL = 0.03


class Stopped(BaseException):
    """Raised to stop a command after the signal `number`, once the command can stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """Records signals from `hold()` to the end of the context; a second Ctrl-C ends the process.

    If `listen` was not called, as in a notebook, a second Ctrl-C raises KeyboardInterrupt.

    Args:
      what_follows: the text to print when a signal arrives, such as "saving after this step".

    Attributes:
      number: the number of the last signal, or 0.
    """

    def __init__(self, what_follows: str = "") -> None:
        self.number = 0
        self._what_follows = what_follows
        self._handlers: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """The name of the last signal, or None if there was none."""
        return signal.Signals(self.number).name if self.number else None

    def raise_if_requested(self) -> None:
        """Raises `Stopped` if a signal has been recorded."""
        if self.number:
            raise Stopped(self.number)

    def record(self, number: int) -> bool:
        """Records a signal; returns False for a second Ctrl-C, which must stop the command now."""
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
        """Starts recording signals; does nothing if recording has already started."""
        global _active
        with _lock:
            if _active is self:
                return
            _active = self
        if threading.current_thread() is threading.main_thread():
            # Set handlers even after `listen`, because jax.distributed sets a SIGTERM handler.
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


# This lock guards the next four variables. It is also held while a signal is processed.
_lock = threading.Lock()
_active: Interrupts | None = None
_decided: int | None = None
_unfinished: list[str] = []
_hint = ""

_wakeup: int | None = None
_leaving = False
_ends_threads = False
_resting = threading.Event()


def listen() -> None:
    """Starts handling signals in this process, which must be running one of mtf's commands.

    Signals that were ignored when the process started, for example by `nohup`, remain ignored.
    """
    global _wakeup
    if _wakeup is not None:
        return
    end_with_launcher()
    malloc.use_one_arena()  # before the first thread
    received, _wakeup = os.pipe()
    os.set_blocking(_wakeup, False)
    threading.Thread(target=_watch, args=(received,), name="signals", daemon=True).start()
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    _install(_rest)
    atexit.register(_ignore)  # Runs after all exit functions that are registered later.


def end_with_launcher() -> None:
    """Makes the kernel send SIGTERM to this process when its parent ends, if `LAUNCHER` is set."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is None:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):  # It has ended before.
        os.kill(os.getpid(), signal.SIGTERM)


def end_with_parent() -> None:
    """Makes this process, which `multiprocessing` has started, end when its parent ends."""
    import multiprocessing

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        end_now(1)

    threading.Thread(target=wait, daemon=True).start()


def hint(text: str) -> None:
    """Sets the text, for example how to resume, that is printed when a signal ends the process."""
    global _hint
    with _lock:
        _hint = text


def ending(status: int) -> int:
    """Returns `status`, which will be the exit status even if a signal ends the process."""
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


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Blocks signals in this thread and, as long as they run, in processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _install(handle: Any) -> dict[int, Any]:
    """Sets the handler of each signal that is not ignored, and returns the previous handlers."""
    before = {}
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[int(number)] = signal.signal(number, handle) or signal.SIG_DFL
            # Signals must not interrupt the system calls of other libraries.
            signal.siginterrupt(number, False)
    return before


def _ignore() -> None:
    """Ignores signals during interpreter shutdown, so that they do not change the exit status."""
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
    """Ends the process without unwinding the stack of any thread."""
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
    end_now(128 + number if _decided is None else _decided)


def end_with_threads() -> None:
    """Makes `leave` end the process even if threads of libraries still wait for a server."""
    global _ends_threads
    _ends_threads = True


def leave(status: int) -> NoReturn:
    """Ends a command with an exit status, which a signal does not change any more."""
    ending(status)
    if _ends_threads:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        end_now(status)
    gc.freeze()  # Otherwise, Python looks for garbage at its end for about a second.
    sys.exit(status)


def end_now(status: int) -> NoReturn:
    """Ends this process immediately, without unwinding the stack or waiting for threads."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(status)


def _remove_folder(path: str) -> None:
    """Removes a folder in which other threads may still write files."""
    import shutil

    for _ in range(_MAX_REMOVALS):
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(_SECONDS_PER_REMOVAL)
        if not os.path.lexists(path):
            return


def farewell(number: int) -> str:
    """Returns the message that a command prints when a signal ends it."""
    name = signal.Signals(number).name
    what = "Interrupted" if number == signal.SIGINT else f"Stopped by {name}"
    return f"{what}: {_hint}." if _hint else f"{what}."


def _rest(number: int, frame: FrameType | None) -> None:
    """Handles a signal in the main thread, and suspends that thread if the process is ending."""
    if _leaving:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _resting.set()
        while True:
            time.sleep(60)


def _say(text: str) -> None:
    """Writes to stderr without using its buffer and lock, which the main thread may be using."""
    with contextlib.suppress(OSError):  # The terminal may have been closed.
        os.write(2, text.encode())
