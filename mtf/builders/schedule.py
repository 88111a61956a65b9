"""Returns configs of learning rate schedules."""

from __future__ import annotations

import fiddle as fdl

from mtf.training.settings import ScheduleConfig


def constant(learning_rate: float = 1e-3) -> fdl.Config[ScheduleConfig]:
    """Returns a constant learning rate, by default 0.001 as in the fine-tuning of T5."""
    return fdl.Config(ScheduleConfig, "constant", learning_rate)


def rsqrt(learning_rate: float = 1.0, warmup_steps: int = 10_000) -> fdl.Config[ScheduleConfig]:
    """Returns the schedule of T5's pretraining, learning_rate / √max(step, warmup_steps)."""
    return fdl.Config(ScheduleConfig, "constant * rsqrt_decay", learning_rate, warmup_steps)
