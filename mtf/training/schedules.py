"""Learning rate schedules by factor string (T5X: `utils.create_learning_rate_scheduler`)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from mtf.training.settings import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, step: jax.Array | int) -> jax.Array:
    """Returns the learning rate, a float32 scalar; `step` is the number of updates so far."""
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
