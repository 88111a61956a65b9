"""Ends a run whose loss, gradients or state are not finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax

from mtf.base.environment import resume_command
from mtf.base.errors import RunError
from mtf.base.progress import Progress
from mtf.checkpoints.manager import CheckpointManager
from mtf.training.metrics import MetricsWriter, StepMetrics, summarize
from mtf.training.settings import ScheduleConfig
from mtf.training.trainer import Trainer

# The run ends when `skip_nonfinite_updates` has skipped this number of consecutive updates.
MAX_SKIPPED_IN_A_ROW = 100
# Half of a base learning rate above the first value is still too large; the second is that of T5's
# fine-tuning.
_LARGE_RATE, _USUAL_RATE = 10.0, 1e-3


@dataclasses.dataclass
class Watch:
    """Checks that the loss and the gradient norm of every step are finite.

    The result of each check is the same on all processes.
    """

    trainer: Trainer
    checkpoints: CheckpointManager
    writer: MetricsWriter  # the writer of train/metrics.jsonl
    progress: Progress

    def __post_init__(self) -> None:
        self._skipped = self._in_a_row = 0

    def check(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Raises RunError if the loss or gradient norm of the last step in `period` is not finite.

        The metrics of `period` are written before the error is raised. If `period` is empty or
        `skip_nonfinite_updates` is set, this method does nothing.
        """
        if not period or self.trainer.config.skip_nonfinite_updates:
            return
        last = period[-1]
        loss, norm = jax.device_get((last["loss"], last["weight_gradient_norm"]))
        if math.isfinite(loss) and math.isfinite(norm):
            return
        for at, steps in ((step - 1, period[:-1]), (step, [last])):
            if steps:
                self.writer.write(at, summarize(steps))
        rate = f" (learning rate {last['learning_rate']:.3g})" if "learning_rate" in last else ""
        raise self.failure(
            f"step {step}: the loss is {loss:g} and the gradient norm is {norm:g}{rate}. Training "
            "has diverged. The state after this step was not saved."
        )

    def count_skipped(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Counts the skipped updates in `period` and prints their number.

        Raises RunError if too many consecutive updates were skipped.
        """
        if not self.trainer.config.skip_nonfinite_updates:
            return
        flags = [bool(flag) for flag in jax.device_get([s["skipped_updates"] for s in period])]
        for skipped in flags:
            self._in_a_row = self._in_a_row + 1 if skipped else 0
        self._skipped += sum(flags)
        if any(flags):
            self.progress.note(
                f"step {step}: skipped {sum(flags)} of the last {len(flags)} updates because the "
                f"loss or gradient norm was not finite ({self._skipped} since this run started)"
            )
        if self._in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise self.failure(
                f"step {step}: the last {self._in_a_row} updates were all skipped because the loss "
                "or gradient norm was not finite. The model is no longer learning."
            )

    def failure(self, what: str) -> RunError:
        """Returns an error that says what happened, where to resume and which settings to try.

        If a checkpoint is being saved, waits until it is complete.
        """
        self.checkpoints.wait()
        latest, run_dir = self.checkpoints.latest_step(), self.checkpoints.model_dir
        if latest is None:
            start = f"No checkpoint has been saved yet. Restart {run_dir}"
        else:
            start = f"The last good checkpoint is from step {latest}. Resume from it"
        settings, optimizer = [], self.trainer.optimizer
        schedule = getattr(optimizer, "learning_rate", None)
        if isinstance(schedule, ScheduleConfig):
            rate = schedule.base_learning_rate
            rate = rate / 2 if rate <= _LARGE_RATE else _USUAL_RATE
            settings.append(f"optimizer.learning_rate.base_learning_rate={rate:g}")
        if hasattr(optimizer, "global_norm_clip_threshold"):
            clip = optimizer.global_norm_clip_threshold
            clip = 1.0 if clip is None else clip / 2
            settings.append(f"optimizer.global_norm_clip_threshold={clip:g}")
        if not self.trainer.config.skip_nonfinite_updates:
            settings.append("trainer.skip_nonfinite_updates=True")
        if not settings:
            return RunError(f"{what}\n{start} with another optimizer.")
        first, others = settings[0], "".join(f"\n  {setting}" for setting in settings)
        return RunError(
            f"{what}\n{start} with one of these settings:{others}\nFor example:\n"
            f"  {resume_command(run_dir)} --set {first} --allow {first.partition('=')[0]}"
        )
