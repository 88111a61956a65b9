"""Ends a run whose loss, gradients or state are not finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax

from mtf.checkpoints.manager import CheckpointManager
from mtf.errors import RunError
from mtf.progress import Progress
from mtf.training.metrics import MetricsWriter, StepMetrics, summarize
from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig
from mtf.training.trainer import Trainer

# Consecutive updates skipped by `skip_nonfinite_updates` after which the run ends.
MAX_SKIPPED_IN_A_ROW = 100


@dataclasses.dataclass
class Watch:
    """Checks the loss and the gradient norm of every step, the same on all processes."""

    trainer: Trainer
    checkpoints: CheckpointManager
    writer: MetricsWriter  # of train/metrics.jsonl
    progress: Progress

    def __post_init__(self) -> None:
        self._skipped = self._in_a_row = 0

    def check(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Checks the last step of a period of statistics, unless `skip_nonfinite_updates` is set.

        Writes the metrics and raises a RunError if loss or gradient norm is NaN or infinite.
        """
        if self.trainer.config.skip_nonfinite_updates:
            return
        last = period[-1]
        loss, norm = jax.device_get((last["loss"], last["weight_gradient_norm"]))
        if math.isfinite(loss) and math.isfinite(norm):
            return
        for at, steps in ((step - 1, period[:-1]), (step, [last])):
            if steps:
                self.writer.write(at, summarize(steps))
        rate = float(last["learning_rate"])
        raise self.failure(
            f"step {step}: the loss is {loss:g} and the gradient norm {norm:g} (learning rate "
            f"{rate:.3g}). Training has diverged; this state was not saved."
        )

    def count_skipped(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Counts and prints the skipped updates of a period; RunError if too many in a row."""
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

        Waits until the checkpoint in progress is complete.
        """
        self.checkpoints.wait()
        latest, run_dir = self.checkpoints.latest_step(), self.checkpoints.model_dir
        if latest is None:
            place = f"No checkpoint has been saved yet. Restart {run_dir}"
        else:
            place = f"The last good checkpoint is step {latest}. Resume from it"
        optimizer = self.trainer.optimizer
        trials = {}
        if isinstance(optimizer, AdafactorConfig | AdamWConfig):
            if isinstance(optimizer.learning_rate, ScheduleConfig):
                rate = optimizer.learning_rate.base_learning_rate / 2
                setting = f"optimizer.learning_rate.base_learning_rate={rate:g}"
                trials[setting] = "lowers the learning rate"
            clip = optimizer.global_norm_clip_threshold
            clip = 1.0 if clip is None else clip / 2
            setting = f"optimizer.global_norm_clip_threshold={clip:g}"
            trials[setting] = "clips gradients to this norm"
        if not self.trainer.model.z_loss:
            trials["model.z_loss=0.0001"] = "keeps the logits from drifting"
        if not self.trainer.config.skip_nonfinite_updates:
            trials["trainer.skip_nonfinite_updates=True"] = "skips and counts nonfinite updates"
        if not trials:
            return RunError(f"{what}\n{place} with another optimizer.")
        width = max(map(len, trials))
        lines = [f"  {setting:<{width}}  {why}" for setting, why in trials.items()]
        first = next(iter(trials))
        return RunError(
            f"{what}\n{place} with one of these settings:\n" + "\n".join(lines) + "\nFor example:\n"
            f"  python -m mtf.run --from {run_dir} --set {first} --allow {first.partition('=')[0]}"
        )
