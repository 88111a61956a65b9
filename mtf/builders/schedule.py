"""Returns configs of learning rate schedules."""

from __future__ import annotations

from typing import Literal, TypeAlias

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.training.settings import ScheduleConfig

ScheduleKind: TypeAlias = Literal["constant", "linear", "cosine", "rsqrt"]


def constant(learning_rate: float = 1e-3) -> fdl.Config[ScheduleConfig]:
    """Returns a constant learning rate, by default 0.001 as in the fine-tuning of T5."""
    return fdl.Config(ScheduleConfig, "constant", learning_rate)


def rsqrt(learning_rate: float = 1.0, warmup_steps: int = 10_000) -> fdl.Config[ScheduleConfig]:
    """Returns the schedule of T5's pretraining, learning_rate / √max(step, warmup_steps)."""
    return fdl.Config(ScheduleConfig, "constant * rsqrt_decay", learning_rate, warmup_steps)


def finetuning(
    kind: ScheduleKind = "constant",
    learning_rate: float = 1e-3,
    steps: int = 1000,
    warmup_steps: int = 0,
    first_step: int = 0,
) -> fdl.Config[ScheduleConfig]:
    """Returns a schedule that rises linearly to `learning_rate` and then stays or decays.

    With the same arguments, the learning rates are those of `get_scheduler` in transformers, except
    that "linear" and "rsqrt" always have at least one warm-up step.

    Args:
      kind: how the learning rate decays after the warm-up: not at all ("constant"), to 0 along a
        line ("linear") or half a cosine ("cosine"), or as 1 / √step ("rsqrt").
      learning_rate: the highest learning rate.
      steps: the number of steps, including the warm-up.
      warmup_steps: the number of warm-up steps.
      first_step: the step at which the schedule starts.
    """
    if not 0 <= warmup_steps < steps:
        raise UserError(
            f"the warm-up must have at least 0 and fewer than {steps} steps, not {warmup_steps}."
        )
    if kind == "constant" and not warmup_steps:
        return constant(learning_rate)
    if kind in ("linear", "rsqrt"):
        warmup_steps = max(warmup_steps, 1)
    warmup = "constant * linear_warmup" if warmup_steps else "constant"
    factors = {
        "constant": warmup,
        "linear": "linear_decay",
        "cosine": f"{warmup} * cosine_decay",
        "rsqrt": f"{warmup} * rsqrt_normalized_decay",
    }
    schedule = fdl.Config(
        ScheduleConfig, factors[kind], learning_rate, warmup_steps, step_offset=first_step
    )
    decay_steps = max(steps - warmup_steps, 1)
    if kind == "linear":
        schedule.decay_factor = 1 / decay_steps
    elif kind == "cosine":
        schedule.steps_per_cycle = decay_steps
    return schedule
