"""Ends a run whose loss, gradients or state are no longer finite numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax

from mtf.checkpoints.manager import CheckpointManager
from mtf.errors import RunError
from mtf.progress import Progress
from mtf.training.metrics import MetricsWriter, StepMetrics, summarize
from mtf.training.trainer import Trainer

# With `skip_nonfinite_updates`: so many in a row are not bad luck, and nothing is learned.
MAX_SKIPPED_IN_A_ROW = 100


@dataclasses.dataclass
class Watch:
    """Checks the loss and the gradient norm of every step, the same on all processes.

    `writer` is that of train/metrics.jsonl.
    """

    trainer: Trainer
    checkpoints: CheckpointManager
    writer: MetricsWriter
    progress: Progress

    def __post_init__(self) -> None:
        self._skipped = self._in_a_row = 0

    def check(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Checks one step; with `skip_nonfinite_updates` `count_skipped` does so instead.

        Args:
          step: the step to check.
          period: the metrics of the steps since the last statistics, up to `step`.

        Raises:
          RunError: its loss or gradient norm is NaN or infinite. The period's metrics are written.
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
            f"{rate:.3g}). Training has diverged, and this state is not saved."
        )

    def count_skipped(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Says how many updates of a period were skipped.

        Raises:
          RunError: the last MAX_SKIPPED_IN_A_ROW updates were all skipped.
        """
        if not self.trainer.config.skip_nonfinite_updates:
            return
        flags = [bool(flag) for flag in jax.device_get([s["skipped_updates"] for s in period])]
        for skipped in flags:
            self._in_a_row = self._in_a_row + 1 if skipped else 0
        self._skipped += sum(flags)
        if any(flags):
            self.progress.note(
                f"step {step}: {sum(flags)} of the last {len(flags)} updates skipped, as loss or "
                f"gradient norm was not finite ({self._skipped} since this run started)"
            )
        if self._in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise self.failure(
                f"step {step}: the last {self._in_a_row} updates were all skipped, as loss or "
                "gradient norm was not finite: nothing is learned any more."
            )

    def failure(self, what: str) -> RunError:
        """Returns the error that ends the run: what happened, what to try, where to go on from.

        Waits until the checkpoint that is being written is complete.
        """
        self.checkpoints.wait()
        latest, run_dir = self.checkpoints.latest_step(), self.checkpoints.model_dir
        if latest is None:
            place = f"No checkpoint has been saved yet. Start {run_dir} again"
        else:
            place = f"The last good checkpoint is that of step {latest}. Go on from it"
        trials = self._trials()
        width = max(map(len, trials))
        lines = [f"  {setting:<{width}}  {why}" for setting, why in trials.items()]
        first = next(iter(trials))
        return RunError(
            f"{what}\n{place} with one of\n" + "\n".join(lines) + "\nas in\n"
            f"  python -m mtf.run --from {run_dir} --set {first} --allow {first.partition('=')[0]}"
        )

    def _trials(self) -> dict[str, str]:
        """Returns PATH=VALUE → effect, for everything that may keep training from diverging."""
        optimizer = self.trainer.optimizer
        rate = optimizer.learning_rate.base_learning_rate
        clip = optimizer.global_norm_clip_threshold
        clip = 1.0 if clip is None else clip / 2
        trials = {
            f"optimizer.learning_rate.base_learning_rate={rate / 2:g}": "a lower learning rate",
            f"optimizer.global_norm_clip_threshold={clip:g}": "gradients clipped to this norm",
        }
        if not self.trainer.model.z_loss:
            trials["model.z_loss=0.0001"] = "keeps the logits from drifting"
        if not self.trainer.config.skip_nonfinite_updates:
            what = "leaves such updates out, and counts them"
            trials["trainer.skip_nonfinite_updates=True"] = what
        return trials
