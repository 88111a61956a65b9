"""Learning rate schedules."""

from __future__ import annotations

import fiddle as fdl

from mtf.training.settings import ScheduleConfig


def constant(learning_rate: float = 1e-3) -> fdl.Config[ScheduleConfig]:
    """Returns the same rate at every step; T5's choice for fine-tuning is 0.001."""
    return fdl.Config(ScheduleConfig, factors="constant", base_learning_rate=learning_rate)


def rsqrt(learning_rate: float = 1.0, warmup_steps: int = 10_000) -> fdl.Config[ScheduleConfig]:
    """learning_rate / √max(step, warmup_steps): T5's choice for pretraining."""
    return fdl.Config(
        ScheduleConfig,
        factors="constant * rsqrt_decay",
        base_learning_rate=learning_rate,
        warmup_steps=warmup_steps,
    )


def linear_warmup_rsqrt(
    learning_rate: float = 1.0, warmup_steps: int = 10_000
) -> fdl.Config[ScheduleConfig]:
    """As `rsqrt`, but rising linearly during the warm-up instead of constant."""
    return fdl.Config(
        ScheduleConfig,
        factors="constant * linear_warmup * rsqrt_decay",
        base_learning_rate=learning_rate,
        warmup_steps=warmup_steps,
    )


def linear_warmup_cosine(
    learning_rate: float, warmup_steps: int, decay_steps: int
) -> fdl.Config[ScheduleConfig]:
    """Rising linearly, then a cosine down to nothing over `decay_steps`."""
    return fdl.Config(
        ScheduleConfig,
        factors="constant * linear_warmup * cosine_decay",
        base_learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        steps_per_cycle=decay_steps,
    )
