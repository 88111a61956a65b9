"""Settings of the training loop, and of evaluation in it."""

from __future__ import annotations

import fiddle as fdl

from mtf.decoding.config import Decoding
from mtf.evaluation.config import InferEval
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


def infer_eval(
    *,
    period: int = 1000,
    num_examples: int | None = 100,
    metrics: tuple[str, ...] | None = None,
    tasks: tuple[str, ...] | None = None,
    decoding: fdl.Config[Decoding] | None = None,
) -> fdl.Config[InferEval]:
    """Decoding of held-out inputs during training."""
    return fdl.Config(
        InferEval,
        period=period,
        num_examples=num_examples,
        metrics=metrics,
        tasks=tasks,
        decoding=decoding,
    )
