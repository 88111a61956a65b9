"""Settings of the training loop, and of evaluation in it."""

from __future__ import annotations

import fiddle as fdl

from mtf.decoding.settings import DecodingConfig
from mtf.evaluation.settings import InferEvalConfig
from mtf.training.settings import TrainerConfig


def trainer(
    *,
    num_microbatches: int = 1,
    stats_period: int = 100,
    eval_period: int | None = 1000,
    eval_steps: int | None = 20,
) -> fdl.Config[TrainerConfig]:
    """Microbatches, and how often to report and evaluate."""
    return fdl.Config(
        TrainerConfig,
        num_microbatches=num_microbatches,
        stats_period=stats_period,
        eval_period=eval_period,
        eval_steps=eval_steps,
    )


def infer_eval(
    *,
    period: int = 1000,
    num_examples: int | None = 100,
    metrics: tuple[str, ...] | None = None,
    tasks: tuple[str, ...] | None = None,
    decoding: fdl.Config[DecodingConfig] | None = None,
) -> fdl.Config[InferEvalConfig]:
    """Decoding of held-out inputs during training."""
    return fdl.Config(
        InferEvalConfig,
        period=period,
        num_examples=num_examples,
        metrics=metrics,
        tasks=tasks,
        decoding=decoding,
    )
