"""What a training run does after a step, if it is due: report, evaluate, stop early, save.

`mtf.training.loop` lists the hooks in the order in which they run, in all processes. Before the
hooks that are due run, the loop waits until the step is computed. The next step donates the buffers
of the state, so a hook must not keep them. `phase` is what `mtf status` shows in the meantime.

To do something else every N steps, add a class with `phase`, `is_due` and `run` to `Hook`, and list
it in `TrainLoop.run`. The reported time per step includes it, unless it uses `Meter.pause`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

from mtf.base.processes.heartbeat import TRAINING
from mtf.base.progress import Progress
from mtf.checkpoints.manager import CheckpointManager, StateNotFiniteError
from mtf.checkpoints.steps import owing
from mtf.data.row_streams import BatchIterator
from mtf.training.early_stopping import EarlyStopping
from mtf.training.evaluations import TRAIN, Evaluation, StopRequested
from mtf.training.meter import Meter
from mtf.training.metrics import Measured, MetricsFiles
from mtf.training.trackers.tracking import Tracking
from mtf.training.train_state import TrainState
from mtf.training.watch import Watch

EVALUATING, SAVING = "evaluating", "saving"


@dataclasses.dataclass
class FinishedStep:
    """A training step, and what the hooks have found so far.

    Attributes:
      step: the number of the step.
      state: the state after the step.
      is_last: whether the step is `train_steps`.
      is_stopped: whether the run ends here because of a signal.
      is_early_end: whether the run ends here because of early stopping.
      measured: the metrics of the step, and marks of evaluations that are left out, as they are
        stored in a checkpoint.
    """

    step: int
    state: TrainState
    is_last: bool
    is_stopped: bool
    is_early_end: bool = False
    measured: Measured = dataclasses.field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """Whether the run ends after this step."""
        return self.is_last or self.is_stopped or self.is_early_end


@dataclasses.dataclass
class Report:
    """Writes the statistics of the steps since the last report, every `stats_period` steps.

    The time of a step includes reading its batch; it excludes compilation, evaluation and saving,
    except what is written in the background.
    """

    stats_period: int
    meter: Meter
    watch: Watch
    files: MetricsFiles
    progress: Progress
    phase = TRAINING

    def is_due(self, done: FinishedStep) -> bool:
        """Returns whether there are steps to report, and the period or the run ends."""
        return bool(self.meter.steps) and (done.ends or done.step % self.stats_period == 0)

    def run(self, done: FinishedStep) -> None:
        """Writes the statistics to files and prints them."""
        steps, report = self.meter.steps, self.meter.report()  # `report` starts a new list.
        done.measured |= self.files[TRAIN].write(done.step, report.metrics, report.times)
        self.progress.stats(
            done.step,
            report.metrics["loss_per_target_token"],
            report.metrics["accuracy"],
            report.seconds,
            report.tokens,
            report.flops,
        )
        self.watch.count_skipped(done.step, steps)


@dataclasses.dataclass
class Evaluate:
    """Evaluates the state or, after a signal, marks the evaluation as left out."""

    evaluation: Evaluation
    meter: Meter
    check: Callable[[], None]  # reports progress; raises StopRequested after a signal
    phase = EVALUATING

    def is_due(self, done: FinishedStep) -> bool:
        """Returns whether the period ends, or this is the last step."""
        period = self.evaluation.period
        return period is not None and (done.is_last or done.step % period == 0)

    def run(self, done: FinishedStep) -> None:
        """Evaluates, or marks the evaluation as left out."""
        if not done.is_stopped:
            try:
                with self.meter.pause("evaluate"):
                    done.measured |= self.evaluation.run(done.step, done.state, self.check)
            except StopRequested:
                done.is_stopped = True
        if done.is_stopped:
            done.measured |= owing([self.evaluation.kind])


@dataclasses.dataclass
class StopEarly:
    """Ends the run if the monitored metric has stopped improving."""

    counts: EarlyStopping
    progress: Progress
    phase = TRAINING

    def is_due(self, done: FinishedStep) -> bool:
        """Returns whether the monitored metric has been measured."""
        return self.counts.metric in done.measured

    def run(self, done: FinishedStep) -> None:
        """Counts the measurement, and ends the run if there were too many without improvement."""
        self.counts.add(done.step, done.measured[self.counts.metric])
        if self.counts.is_over:
            done.is_early_end = True
            self.progress.note(f"step {done.step}: training ends early: {self.counts}")


@dataclasses.dataclass
class Save:
    """Saves the state, the positions of all processes in the data, and the metrics.

    This is due when `checkpoint.save` says so, and at the end of the run. When a run is resumed,
    `mtf.jobs.train.run` sets the positions again.
    """

    checkpoints: CheckpointManager
    batches: BatchIterator
    meter: Meter
    watch: Watch
    files: MetricsFiles
    tracking: Tracking
    phase = SAVING

    def is_due(self, done: FinishedStep) -> bool:
        """Returns whether the config asks for a checkpoint, or the run ends."""
        return done.ends or self.checkpoints.due(done.step)

    def run(self, done: FinishedStep) -> None:
        """Starts the save; the checkpoint is written in the background."""
        step, measured = done.step, done.measured
        monitored = self.checkpoints.config.metric_name_to_monitor
        if monitored is not None and not math.isfinite(measured.get(monitored, 0.0)):
            self.watch.progress.note(
                f"step {step}: {monitored} is {measured[monitored]:g}, so this checkpoint cannot "
                "be the best"
            )
        with self.meter.pause("checkpoint"):
            for writer in self.files.values():
                writer.flush()  # A resumed run appends to these files, from this step on.
            state, position = done.state.state_dict(), self.batches.get_state()
            try:
                self.checkpoints.save(step, state, position, measured)
            except StateNotFiniteError as error:
                raise self.watch.failure(str(error)) from None
        self.tracking.log_checkpoint(step, self.checkpoints.path(step))


Hook: TypeAlias = Report | Evaluate | StopEarly | Save
