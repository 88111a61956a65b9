"""The interface of experiment trackers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mtf.base.run_end import RunEnd


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker starts or resumes.

    Attributes:
      directory: the run directory, as an absolute or remote path.
      name: the last part of `directory`.
      step: the step from which the run trains. A run that was killed repeats the steps after its
        last checkpoint and sends their metrics again.
      config: a dict mapping the paths of all settings to values, as shown by `--print all`. Tuples
        are represented as lists, and components as "@NAME".
      id: the id that an earlier `start` of this run returned; None if there is none.
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
        """Returns a sample of `texts`, in which each sequence of whitespace becomes one space."""
        return cls._make(" ".join(text.split()) for text in texts)


class Tracker:
    """An experiment tracker; a custom tracker overrides the methods that it needs.

    Process 0 calls the methods of each tracker sequentially in a separate thread, so that training
    does not wait for them. If a method raises an error, the run prints a warning and continues.
    """

    def check(self) -> None:
        """Raises UserError if the tracker cannot be used; called before a run writes anything."""

    def start(self, run: TrackedRun) -> str | None:
        """Starts tracking a run; may return an id, which becomes `run.id` when the run resumes.

        If this method raises an error, no other method is called.
        """

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receives the metrics of a step, such as "train/loss"; values may be NaN or infinite."""

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Receives held-out examples with predictions.

        If the run has an `evaluator`, this method is called after each of its evaluations, with the
        first `num_samples` examples of each task. Otherwise, it is called at the end of the run.
        """

    def log_checkpoint(self, step: int, path: str) -> None:
        """Receives the path of a checkpoint, which may not be complete yet."""

    def end(self, end: RunEnd) -> None:
        """Receives whether the run finished, was stopped by a signal, or failed."""
