"""Sums of squares that are fast on CPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp


def mean_square(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Returns the mean of the squares of `x` over `dims`, as `jnp.mean(jnp.square(x), dims)`.

    On CPUs, this is a product of matrices: XLA's sum over the rows of a wide matrix, such as the
    kernel of the logits, takes 50 times as long.
    """
    count = math.prod(x.shape[dim] for dim in dims)
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: _sum_of_squares_by_product(x, tuple(dims)) / count,
        default=lambda x: jnp.mean(jnp.square(x), axis=tuple(dims)),
    )


def _sum_of_squares_by_product(x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    if x.ndim - 1 in dims:
        kept = tuple(dim for dim in range(x.ndim) if dim not in dims)
        return jax.lax.dot_general(x, x, ((dims, dims), (kept, kept)))
    # The products of columns with themselves would be strided.
    ones = jnp.ones([x.shape[dim] for dim in dims], x.dtype)
    return jax.lax.dot_general(ones, jnp.square(x), ((tuple(range(ones.ndim)), dims), ((), ())))
