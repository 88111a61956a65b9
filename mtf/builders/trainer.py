"""Settings of the training loop."""

from __future__ import annotations

import fiddle as fdl

from mtf.training.config import Trainer


def trainer(
    *,
    num_microbatches: int = 1,
    stats_period: int = 100,
    eval_period: int | None = 1000,
    eval_steps: int | None = 20,
) -> fdl.Config[Trainer]:
    """Microbatches, and how often to report and evaluate."""
    return fdl.Config(
        Trainer,
        num_microbatches=num_microbatches,
        stats_period=stats_period,
        eval_period=eval_period,
        eval_steps=eval_steps,
    )
