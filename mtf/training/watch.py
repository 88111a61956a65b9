"""Ends a run whose loss, gradients or state are no longer finite numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import jax

from mtf.checkpoints.manager import CheckpointManager
from mtf.errors import RunError
from mtf.progress import Progress
from mtf.training.metrics import MetricsWriter, StepMetrics, summarize
from mtf.training.settings import AdafactorConfig, AdamWConfig
from mtf.training.trainer import Trainer

# With `skip_nonfinite_updates`: so many in a row are not bad luck, and nothing is learned.
MAX_SKIPPED_IN_A_ROW = 100


class Watch:
    """Looks at the loss and the gradient norm of every step.

    The metrics are the same on all processes, so all of them end at the same step.

    Args:
      trainer: whose steps these are.
      run_dir: of the run.
      checkpoints: to name the one to go on from.
      writer: of train/metrics.jsonl.
      progress: where lines go.
    """

    def __init__(
        self,
        trainer: Trainer,
        run_dir: Path,
        checkpoints: CheckpointManager,
        writer: MetricsWriter,
        progress: Progress,
    ) -> None:
        self._trainer = trainer
        self._run_dir = run_dir
        self._checkpoints = checkpoints
        self._writer = writer
        self._progress = progress
        self._skipped = self._in_a_row = 0

    def check(self, step: int, period: Sequence[StepMetrics], count: int) -> None:
        """Looks at one step; with `skip_nonfinite_updates` `count_skipped` does so instead.

        Args:
          step: the last of the first `count` steps of `period`.
          period: the steps since the last statistics.
          count: see `step`.

        Raises:
          RunError: its loss or gradient norm is NaN or infinite. What the period had is recorded.
        """
        if self._trainer.config.skip_nonfinite_updates:
            return
        last = period[count - 1]
        loss, norm = jax.device_get((last["loss"], last["weight_gradient_norm"]))
        if math.isfinite(loss) and math.isfinite(norm):
            return
        for at, steps in ((step - 1, period[: count - 1]), (step, [last])):
            if steps:
                self._writer.write(at, summarize(steps))
        rate = float(last["learning_rate"])
        raise self.failure(
            f"step {step}: the loss is {loss:g} and the gradient norm {norm:g} (learning rate "
            f"{rate:.3g}). Training has diverged, and this state is not saved."
        )

    def count_skipped(self, step: int, period: Sequence[StepMetrics]) -> None:
        """Says how many updates of a period were skipped.

        Raises:
          RunError: none has been made for MAX_SKIPPED_IN_A_ROW steps.
        """
        if not self._trainer.config.skip_nonfinite_updates:
            return
        flags = [bool(flag) for flag in jax.device_get([s["skipped_updates"] for s in period])]
        for skipped in flags:
            self._in_a_row = self._in_a_row + 1 if skipped else 0
        self._skipped += sum(flags)
        if any(flags):
            self._progress.note(
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
        self._checkpoints.wait()
        latest = self._checkpoints.latest_step()
        if latest is None:
            place = f"No checkpoint has been saved yet. Start {self._run_dir} again"
        else:
            place = f"The last good checkpoint is that of step {latest}. Go on from it"
        trials = _trials(self._trainer)
        width = max(len(setting) for setting, _ in trials)
        lines = [f"  {setting:<{width}}  {why}" for setting, why in trials]
        path = trials[0][0].partition("=")[0]
        return RunError(
            f"{what}\n{place} with one of\n" + "\n".join(lines) + "\nas in\n"
            f"  python -m mtf.run --from {self._run_dir} --set {trials[0][0]} --allow {path}"
        )


def _trials(trainer: Trainer) -> list[tuple[str, str]]:
    """(PATH=VALUE, what it does) for everything that may keep training from diverging."""
    optimizer: AdafactorConfig | AdamWConfig = trainer.optimizer
    schedule, clip = optimizer.learning_rate, optimizer.global_norm_clip_threshold
    trials = [
        (
            f"optimizer.learning_rate.base_learning_rate={schedule.base_learning_rate / 2:g}",
            "a lower learning rate",
        ),
        (
            f"optimizer.global_norm_clip_threshold={1.0 if clip is None else clip / 2:g}",
            "gradients clipped to this norm",
        ),
    ]
    if not trainer.model.z_loss:
        trials.append(("model.z_loss=0.0001", "keeps the logits from drifting"))
    if not trainer.config.skip_nonfinite_updates:
        trials.append(
            ("trainer.skip_nonfinite_updates=True", "leaves such updates out, and counts them")
        )
    return trials
