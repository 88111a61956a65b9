"""Computes the learning rate of a step (T5X: `utils.create_learning_rate_scheduler`).

A schedule is either a product of named factors or a function of the step.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from mtf.base.errors import UserError
from mtf.training.losses import is_scalar, shown
from mtf.training.settings import Schedule, ScheduleConfig


def learning_rate(schedule: ScheduleConfig | Schedule, step: jax.Array | int) -> jax.Array:
    """Returns the learning rate, a float32 scalar; `step` is the number of previous updates.

    Raises UserError if `schedule` is a function that does not return a number.
    """
    if not isinstance(schedule, ScheduleConfig):
        return _value_of(schedule, step)
    s = schedule
    step = jnp.maximum(0, jnp.asarray(step) - s.step_offset).astype(jnp.float32)
    rate = jnp.ones((), jnp.float32)
    for name in s.names:
        if name == "constant":
            rate *= s.base_learning_rate
        elif name == "linear_warmup":
            rate *= jnp.minimum(1.0, step / s.warmup_steps)
        elif name == "linear_decay":
            decay = 1.0 + s.decay_factor * (s.warmup_steps - step)
            rate *= s.base_learning_rate * jnp.minimum(step / s.warmup_steps, decay)
        elif name == "rsqrt_decay":
            rate /= jnp.sqrt(jnp.maximum(step, s.warmup_steps))
        elif name == "rsqrt_normalized_decay":
            rate *= math.sqrt(s.warmup_steps) / jnp.sqrt(jnp.maximum(step, s.warmup_steps))
        elif name == "decay_every":
            rate *= s.decay_factor ** (step // s.steps_per_decay)
        else:  # cosine_decay
            progress = jnp.maximum(0.0, (step - s.warmup_steps) / s.steps_per_cycle)
            rate *= jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (progress % 1.0))))
    return jnp.maximum(rate, s.min_learning_rate)


def _value_of(schedule: Schedule, step: jax.Array | int) -> jax.Array:
    try:
        value = schedule(jnp.asarray(step))
    except jax.errors.ConcretizationTypeError:
        raise UserError(
            "optimizer.learning_rate: the function branches on the step, whose value is not known "
            "when JAX compiles the function. Use jnp.where instead of if."
        ) from None
    if not is_scalar(value):
        raise UserError(
            "optimizer.learning_rate: expected a function that returns a number for a step, but it "
            f"returned {shown(value)}"
        )
    return jnp.asarray(value, jnp.float32)
