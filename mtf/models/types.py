"""Types shared by the modules of the network: parameters and dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


class Dropout(NamedTuple):
    """Dropout that folds its random key with a layer's index and a call's index in that layer.

    Attributes:
      rate: the probability that an element is zeroed.
      rng: the random key; None to disable dropout.
    """

    rate: float
    rng: jax.Array | None

    def at(self, index: int | jax.Array) -> Dropout:
        """Returns the dropout for the layer, or the part of a layer, that has the given index."""
        return self if self.rng is None else Dropout(self.rate, jax.random.fold_in(self.rng, index))

    def __call__(self, x: jax.Array, index: int, shared_axis: int | None = -2) -> jax.Array:
        """Zeroes elements of `x` with probability `rate`, and scales up the others.

        All positions along `shared_axis` share a dropout mask. By default, as in T5X, this is the
        axis of sequence positions.
        """
        if self.rng is None or self.rate == 0.0:
            return x
        shape = list(x.shape)
        if shared_axis is not None:
            shape[shared_axis] = 1
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(jax.random.fold_in(self.rng, index), keep, tuple(shape))
        return jnp.where(kept, x / jnp.asarray(keep, x.dtype), jnp.zeros((), x.dtype))
