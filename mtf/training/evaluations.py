"""The evaluations of a training run, which compute losses or metrics of decoded text."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax

from mtf.base.progress import Progress, waiting
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.data.packing import HostBatch
from mtf.data.row_streams import Evaluations
from mtf.partitioning.processes import wait_for_others
from mtf.training.metrics import Measured, MetricsFiles, summarize
from mtf.training.trackers import Sample
from mtf.training.trackers.tracking import Tracking
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer

TRAIN, TRAINING_EVAL, INFERENCE_EVAL = METRIC_KINDS


class StopRequested(Exception):
    """Raised to end an evaluation after a signal."""


class Evaluator(Protocol):
    """Evaluates a model by decoding, every `period` steps and after the last step."""

    period: int

    @property
    def samples(self) -> Sequence[Sample]:
        """The held-out examples, with the predictions from the last evaluation."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the evaluated tasks."""

    def evaluate(
        self, params: Any, on_progress: Callable[[int], None]
    ) -> Mapping[str, Mapping[str, float]]:
        """Returns a dict mapping each task to its metrics, a dict mapping names to values.

        After each batch, calls `on_progress` with the number of examples in the batch.
        """


@dataclasses.dataclass
class LossEvaluation:
    """Computes the loss without dropout on each set of batches (T5X: `train_eval`).

    Like `DecodedEvaluation`, it is due every `period` steps and after the last step. `kind`, one of
    METRIC_KINDS, is the directory of its metrics.
    """

    trainer: Trainer
    batch_size: int
    evaluations: Evaluations
    files: MetricsFiles
    progress: Progress
    kind = TRAINING_EVAL

    @property
    def period(self) -> int | None:
        """The number of steps between evaluations; None if there is no evaluation."""
        return self.trainer.config.eval_period

    def run(self, step: int, state: TrainState, check: Callable[[], None]) -> Measured:
        """Evaluates a state, writes the metrics of the losses, and returns them.

        Calls `check` after each batch, which raises StopRequested after a signal.
        """
        measured: Measured = {}
        params = self.trainer.eval_params(state)
        for name, batches in self.evaluations.items():
            with waiting(f"evaluating {name}", shown=not self.progress.quiet):
                sums = self._sums(batches(), params, check)
            if not sums:
                continue
            summary = summarize(sums)
            loss, accuracy = summary["loss_per_target_token"], summary["accuracy"]
            measured |= self.files[f"{self.kind}/{name}"].write(step, summary)
            scores = f"loss {loss:.4f}  token accuracy {accuracy:.3f}"
            self.progress.note(f"step {step}  {name}: {scores}")
            if not math.isfinite(loss):
                self.progress.note(
                    f"step {step}  {name}: the loss is not finite, although the training loss is "
                    "finite"
                )
        return measured

    def _sums(
        self, batches: Iterator[HostBatch], params: Any, check: Callable[[], None]
    ) -> list[Any]:
        """Returns the sums of each batch, of at most `eval_steps` batches."""
        sums: list[Any] = []
        for rows in itertools.islice(batches, self.trainer.config.eval_steps):
            batch = self.trainer.global_batch(rows, self.batch_size)
            if sums:
                jax.block_until_ready(sums[-1])  # Keep the host at most one batch ahead.
            wait_for_others()
            sums.append(self.trainer.eval_step(params, batch))
            check()
        return sums


@dataclasses.dataclass
class DecodedEvaluation:
    """Decodes held-out inputs with an evaluator, and sends samples to the trackers."""

    trainer: Trainer
    evaluator: Evaluator
    files: MetricsFiles
    progress: Progress
    tracking: Tracking
    kind = INFERENCE_EVAL

    @property
    def period(self) -> int | None:
        """The number of steps between evaluations."""
        return self.evaluator.period

    def run(self, step: int, state: TrainState, check: Callable[[], None]) -> Measured:
        """Writes and returns the metrics of the texts; see `LossEvaluation.run`."""
        measured: Measured = {}
        params = self.trainer.eval_params(state)
        with waiting("decoding held-out inputs", shown=not self.progress.quiet):
            found = self.evaluator.evaluate(params, on_progress=lambda _: check())
        for name, scores in found.items():
            measured |= self.files[f"{self.kind}/{name}"].write(step, scores)
            shown = "  ".join(f"{score} {value:.2f}" for score, value in scores.items())
            self.progress.note(f"step {step}  {name}, decoded: {shown}")
        if self.evaluator.samples:
            self.tracking.log_samples(step, self.evaluator.samples)
        return measured


Evaluation: TypeAlias = LossEvaluation | DecodedEvaluation
