"""An argmax that is fast on CPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def argmax(logits: jax.Array) -> jax.Array:
    """Returns the index (int32) of the first maximum along the last axis, like `jnp.argmax`.

    Uses two reductions, because XLA's argmax runs on a single CPU thread without vector
    instructions and takes three times as long.
    """
    indices = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_maximum = logits == jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_maximum, indices, logits.shape[-1] - 1), axis=-1)
