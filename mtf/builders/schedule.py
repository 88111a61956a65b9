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


def linear_warmup_rsqrt(
    learning_rate: float = 1.0, warmup_steps: int = 10_000
) -> fdl.Config[ScheduleConfig]:
    """Returns the schedule `rsqrt` with a linear warmup instead of a constant one."""
    factors = "constant * linear_warmup * rsqrt_decay"
    return fdl.Config(ScheduleConfig, factors, learning_rate, warmup_steps)


def linear_warmup_cosine(
    learning_rate: float, warmup_steps: int, decay_steps: int
) -> fdl.Config[ScheduleConfig]:
    """Returns a schedule with a linear warmup and a cosine decay to zero over `decay_steps`."""
    factors = "constant * linear_warmup * cosine_decay"
    return fdl.Config(
        ScheduleConfig, factors, learning_rate, warmup_steps, steps_per_cycle=decay_steps
    )
