"""Ends training when a metric has stopped improving."""

from __future__ import annotations

import dataclasses
import math

from mtf.base.strict_json import read_lines
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.storage import AnyPath


@dataclasses.dataclass
class EarlyStopping:
    """Counts how often a metric has been measured since it had its best value.

    A value that is not finite, or only equal to the best value, does not count as an improvement.

    Attributes:
      metric: the name of the metric, such as "training_eval/held_out/loss_per_target_token".
      mode: whether the largest value ("max") or the smallest value ("min") is the best.
      patience: the number of measurements without improvement after which training ends; None to
        disable early stopping.
      best_step, best_value: the first step with the best value, and that value; at first None, NaN.
      num_without_improvement: the number of measurements after `best_step`.
    """

    metric: str
    mode: str
    patience: int | None
    best_step: int | None = None
    best_value: float = math.nan
    num_without_improvement: int = 0

    @classmethod
    def resumed(
        cls, run_dir: AnyPath, save: SaveCheckpointConfig, patience: int | None, last_step: int
    ) -> EarlyStopping:
        """Returns the counts at `last_step`, computed from the `metrics.jsonl` of the metric."""
        metric = save.metric_name_to_monitor or ""
        counts = cls(metric, save.metric_mode or "min", patience)
        if patience is None:
            return counts
        parts = metric.split("/")
        depth = 1 if parts[0] == "train" else 2
        path = run_dir / "/".join(parts[:depth]) / "metrics.jsonl"
        for line in read_lines(path) if path.exists() else ():
            if line["step"] <= last_step:
                counts.add(line["step"], line.get("/".join(parts[depth:])))
        return counts

    @property
    def is_over(self) -> bool:
        """Whether training should end."""
        return self.patience is not None and self.num_without_improvement >= self.patience

    def add(self, step: int, value: float | None) -> None:
        """Adds the value of the metric at a step; None does not count as an improvement."""
        if value is not None and math.isfinite(value) and self._is_best(value):
            self.best_step, self.best_value, self.num_without_improvement = step, value, 0
        else:
            self.num_without_improvement += 1

    def _is_best(self, value: float) -> bool:
        if self.best_step is None:
            return True
        return value > self.best_value if self.mode == "max" else value < self.best_value

    def __str__(self) -> str:
        best = "" if self.best_step is None else f" since step {self.best_step}"
        number = self.num_without_improvement
        return (
            f"{self.metric} has not improved{best} "
            f"({number} evaluation{'s' * (number != 1)}; trainer.early_stopping_patience)"
        )
