"""Argmax that is fast on CPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def argmax(logits: jax.Array) -> jax.Array:
    """Returns the first index of the maximum over the last axis, as `jnp.argmax`, int32.

    Uses two reductions. XLA computes argmax on one CPU thread without vector instructions, which
    takes three times as long.
    """
    indices = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_maximum = logits == jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_maximum, indices, logits.shape[-1] - 1), axis=-1)
