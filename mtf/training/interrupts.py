"""SIGTERM and Ctrl-C: stop at the next step, with everything saved."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any

import jax


class Interrupts:
    """Within this context SIGTERM and a first Ctrl-C ask the loop to stop after its step.

    A second Ctrl-C raises KeyboardInterrupt at once.

    Attributes:
      requested: the signal's name once one has come, else None.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        # Among several processes SIGTERM belongs to jax.distributed, which makes them agree.
        numbers = [signal.SIGINT] if jax.process_count() > 1 else [signal.SIGTERM, signal.SIGINT]
        for number in numbers:
            if signal.getsignal(number) == signal.SIG_IGN:
                continue  # as nohup and background jobs want it
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested == "SIGINT":
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
        again = " (Ctrl-C again to stop now, unsaved)" if number == signal.SIGINT else ""
        sys.stderr.write(f"\n{self.requested}: saving after this step{again}\n")
