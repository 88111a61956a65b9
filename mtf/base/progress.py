"""Shows the progress of training as lines of text, and that of other jobs as progress bars."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_SECONDS_PER_LINE, _SECONDS_UNTIL_SHOWN, _SECONDS_UNTIL_LIVE = 10.0, 5, 2


def duration(seconds: float) -> str:
    """Formats a number of seconds as text such as 1:02:03 or 2:03."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def count(number: float) -> str:
    """Formats a number with three significant digits and a suffix, such as 950 or 1.23k."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"


@dataclasses.dataclass
class Progress:
    """Prints one line per logging period of training; on a terminal, also a line updated in place.

    Attributes:
      train_steps: the number of the last step.
      peak_flops: the total peak FLOP/s of all devices, or None to hide MFU.
      stream: the file to print to.
      quiet: whether to print nothing; True in all processes except one.
    """

    train_steps: int
    peak_flops: float | None
    _: dataclasses.KW_ONLY
    stream: TextIO = dataclasses.field(default_factory=lambda: sys.stdout)
    quiet: bool = False

    def __post_init__(self) -> None:
        self._live = self.stream.isatty() and not self.quiet
        self._loss = ""
        self._seconds_per_step = 0.0
        self._speed = ""
        self._shown = time.perf_counter()

    def stats(
        self,
        step: int,
        loss_per_token: float,
        accuracy: float,
        seconds: float,
        tokens: float,
        flops: float,
    ) -> None:
        """Prints the line for the logging period that ends at `step`.

        Args:
          step: the last step of the period.
          loss_per_token: mean loss per target token of the period.
          accuracy: mean accuracy over the target tokens of the period.
          seconds: mean duration of a step.
          tokens: mean number of input and target positions per step.
          flops: mean number of FLOPs per step on all devices.
        """
        self._loss = f"loss {loss_per_token:.4f}  token accuracy {accuracy:.3f}"
        self._seconds_per_step = seconds
        self._speed = f"{count(tokens / seconds)} tokens/s"
        if self.peak_flops:
            self._speed += f"  MFU {flops / seconds / self.peak_flops:.1%}"
        self._print(self._line(step), "\n")

    def tick(self, step: int) -> None:
        """Updates the last line on a terminal, at most ten times a second.

        Elsewhere, prints a line if nothing has been printed for five seconds before the first
        statistics.
        """
        silent = time.perf_counter() - self._shown
        if self._live and silent > 0.1:
            self._print(self._line(step), "")
        elif not self._loss and silent > _SECONDS_UNTIL_SHOWN:
            self._print(self._line(step), "\n")

    def note(self, text: str) -> None:
        """Prints a line of text."""
        self._print(text, "\n")

    def _line(self, step: int) -> str:
        if not self._loss:
            return f"step {step}/{self.train_steps}"
        left = duration((self.train_steps - step) * self._seconds_per_step)
        return f"step {step}/{self.train_steps}  {self._loss}  {self._speed}  ETA {left}"

    def _print(self, text: str, end: str) -> None:
        if self.quiet:
            return
        self._shown = time.perf_counter()
        clear = "\r\x1b[K" if self._live else ""
        try:
            self.stream.write(clear + text + end)
            self.stream.flush()
        except OSError:
            # The run must continue and save its state even if the terminal or pipe is closed.
            self.quiet = True
            if self.stream is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def waiting(what: str, *, shown: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Shows what a block does and for how long, if it takes long.

    On a terminal, a line appears after two seconds, is updated every second and removed at the end.
    Otherwise, a line is printed after 5, 10, 20, … seconds. While an inner block or bar is shown,
    this one is not. `stream` is stderr by default.
    """
    if not shown:
        yield
        return
    stream = stream or sys.stderr
    ended, start, is_live = threading.Event(), time.perf_counter(), stream.isatty()
    first = _SECONDS_UNTIL_LIVE if is_live else _SECONDS_UNTIL_SHOWN
    with _innermost() as is_innermost:

        def show() -> None:
            due = first
            while not ended.wait(max(start + due - time.perf_counter(), 0)):
                text = f"{what} … {duration(due)}"
                if is_innermost():
                    _write(f"\r\x1b[K{text}" if is_live else f"{text}\n", stream)
                due = due + 1 if is_live else due * 2
            if is_live and due > first:
                _write("\r\x1b[K", stream)

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _write(text: str, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # The terminal or pipe is closed.
        stream.write(text)
        stream.flush()


# A token for each block of `waiting` and each bar that has been entered, the innermost last.
_entered: list[object] = []


@contextlib.contextmanager
def _innermost() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether no other block or bar has been entered inside."""
    token = object()
    _entered.append(token)
    try:
        yield lambda: _entered[-1] is token
    finally:
        _entered.remove(token)


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """As `rate_bar`, but without a rate; yields a function that advances the bar."""
    done = 0
    with rate_bar(total, "", shown=shown) as report:
        report(0, 0, description)

        def advance(number: int) -> None:
            nonlocal done
            done += number
            report(done, done, description)

        yield advance


@contextlib.contextmanager
def rate_bar(
    total: int, unit: str, *, shown: bool = True
) -> Iterator[Callable[[int, int, str], None]]:
    """Shows a progress bar with a rate; without a terminal or notebook, prints a line every 10 s.

    Yields a function `report(completed, num_units, description)`. `completed` is how much of
    `total` is done. The rate is `num_units` per second; `unit` is a plural such as "examples", or
    "" to show `completed` and `total` instead of a rate.
    """
    bar = _rich_bar(unit, shown)
    task = bar.add_task("", total=total, rate="…")
    start = last = time.perf_counter()
    first: int | None = None

    def report(completed: int, num_units: int, description: str) -> None:
        nonlocal first, last
        now = time.perf_counter()
        first = completed if first is None else first
        rate = f"{num_units / max(now - start, 1e-3):,.0f}"
        bar.update(task, completed=completed, description=description, rate=rate)
        if shown and bar.disable and now - last >= _SECONDS_PER_LINE:
            last = now
            left = (total - completed) * (now - start) / max(completed - first, 1)
            done = f"{completed / max(total, 1):.0%}  {rate} {unit}/s"
            done = done if unit else f"{completed:,} of {total:,}"
            _write(f"{description}  {done}  ETA {left:.0f} s\n", sys.stderr)

    with _innermost(), bar:
        yield report


def _rich_bar(unit: str, shown: bool) -> RichProgress:
    # These packages are imported here because importing them is slow.
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    live = (console.is_terminal and sys.stderr.isatty()) or console.is_jupyter
    columns: list[progress.ProgressColumn | str] = [progress.MofNCompleteColumn()]
    if unit:
        columns = [progress.TaskProgressColumn(), f"{{task.fields[rate]}} {unit}/s"]
    columns = ["{task.description}", progress.BarColumn(), *columns, progress.TimeRemainingColumn()]
    disable = not (shown and live)
    return progress.Progress(*columns, console=console, transient=not unit, disable=disable)
