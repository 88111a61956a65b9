"""What a tracker of experiments receives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mtf.run_end import RunEnd


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run that starts or resumes.

    Attributes:
      directory: the run directory, absolute, or an address such as gs://….
      name: its last part.
      step: the step from which it trains. When a run resumes after it was killed, it computes the
        steps after its last checkpoint again, and sends their metrics again.
      config: path → value of its config, as `--print flat` shows them; lists for tuples, "@NAME"
        for components.
      id: what `start` returned when the run first started; None at its first start.
    """

    directory: str
    name: str
    step: int
    config: Mapping[str, Any]
    id: str | None = None


class Sample(NamedTuple):
    """A held-out example with the model's prediction, as text."""

    input: str
    true: str
    predicted: str

    @classmethod
    def on_lines(cls, *texts: str) -> Sample:
        """Returns a sample of three texts, each on one line."""
        return cls._make(" ".join(text.split()) for text in texts)


class Tracker:
    """A tracker of experiments; a class of the user's own overrides what it needs.

    The methods are called on process 0, one after another in a thread of the tracker's own, so
    training does not wait for them. If one raises an error, the run prints a warning, once, and
    continues.
    """

    def check(self) -> None:
        """Raises UserError if the tracker cannot be used; called before a run writes anything."""

    def start(self, run: TrackedRun) -> str | None:
        """Starts to track a run, and returns an id, which the resumed run gets in `run.id`.

        If it raises an error, no other method is called.
        """

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receives metrics of a step, such as "train/loss"; a value may be NaN or infinite."""

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Receives held-out examples with predictions.

        They come from each evaluation of decoded text (`evaluator`), the first `num_samples` of
        each task; without an evaluator, at the end of the run.
        """

    def log_checkpoint(self, step: int, path: str) -> None:
        """Receives the path or address of a checkpoint, which is still being written."""

    def end(self, end: RunEnd) -> None:
        """Receives how the run ended: finished, stopped by a signal, or failed."""
