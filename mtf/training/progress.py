"""The line that tells how a run goes."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def count(number: float) -> str:
    """Returns a number in three digits: 950, 1.23k, 45.6M."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"


class Progress:
    """Prints a line every `stats_period` steps, and on a terminal keeps one current in between.

    Args:
      first_step: of this run.
      train_steps: the last one.
      tokens_per_step: input and target positions of a global batch.
      flops_per_step: of all devices together.
      peak_flops: of all devices together; None: no MFU is shown.
      stream: where the lines go.
      quiet: print nothing (all processes but one).
    """

    def __init__(
        self,
        first_step: int,
        train_steps: int,
        tokens_per_step: int,
        flops_per_step: float,
        peak_flops: float | None,
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
    ) -> None:
        self._train_steps = train_steps
        self._tokens_per_step = tokens_per_step
        self._flops_per_step = flops_per_step
        self._peak_flops = peak_flops
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() and not quiet
        self._quiet = quiet
        self._loss = ""
        self._seconds_per_step: float | None = None
        self._shown = time.perf_counter()

    def stats(self, step: int, loss_per_token: float, accuracy: float, seconds: float) -> None:
        """A line that stays: loss per target token, accuracy, speed and time left.

        Args:
          step: the last step of the period.
          loss_per_token: mean over the period.
          accuracy: likewise.
          seconds: of one step.
        """
        self._loss = f"loss {loss_per_token:.4f}  accuracy {accuracy:.3f}"
        self._seconds_per_step = seconds
        self._print(self._line(step), "\n")

    def tick(self, step: int) -> None:
        """Moves the current line of a terminal on, at most ten times a second."""
        now = time.perf_counter()
        if self._live and self._loss and now - self._shown > 0.1:
            self._shown = now
            self._print(self._line(step), "")

    def note(self, text: str) -> None:
        """A line of its own, for instance about a checkpoint."""
        self._print(text, "\n")

    def _line(self, step: int) -> str:
        seconds = self._seconds_per_step
        assert seconds is not None
        parts = [
            f"step {step}/{self._train_steps}",
            self._loss,
            f"{count(self._tokens_per_step / seconds)} tokens/s",
        ]
        if self._peak_flops:
            parts.append(f"MFU {self._flops_per_step / seconds / self._peak_flops:.1%}")
        parts.append(f"ETA {duration((self._train_steps - step) * seconds)}")
        return "  ".join(parts)

    def _print(self, text: str, end: str) -> None:
        if self._quiet:
            return
        clear = "\r\x1b[K" if self._live else ""
        try:
            self._stream.write(clear + text + end)
            self._stream.flush()
        except OSError:
            # A run goes on, and saves, when its terminal or what reads its output is gone.
            self._quiet = True
            if self._stream is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
