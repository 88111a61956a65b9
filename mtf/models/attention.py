"""Dot-product attention with a position bias. The backward pass recomputes the logits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from mtf.models.types import Dropout

MASKED = -1e10  # logit of a masked key
_Products = tuple[jax.Array, jax.Array, jax.Array]  # products, mask, logit of a masked key
SAVED = "attention"  # name of the attention values that `remat_policy="minimal"` saves


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    bias: jax.Array | None,
    dropout: Dropout,
) -> jax.Array:
    """Returns the attention output for each query, (b, q, h, d).

    `query` has shape (b, q, h, d), and `key` and `value` have shape (b, k, h, d). `mask`,
    (b or 1, 1, q or 1, k), is True where a query attends to a key. `bias`, (1, h, q, k) float32, is
    added to the logits. `dropout` drops the same attention weights for all queries.
    """
    query, key = (x.transpose(0, 2, 1, 3) for x in (query, key))
    # Dropping the same weights for all queries is equivalent to dropping value vectors.
    value = dropout(value.transpose(0, 2, 3, 1), 0).swapaxes(2, 3)
    return _attend(query, key, value, mask, bias).transpose(0, 2, 1, 3)


@jax.custom_vjp
def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Returns the values weighted by the softmax of the logits, (b, h, q, d).

    The axis of heads precedes that of positions, because CPUs multiply matrices faster in this
    layout. The backward pass recomputes the logits, because storing them would take far more memory
    than all other arrays (FlashAttention, arxiv.org/abs/2205.14135, section 3.1).
    """
    return _attend_forward(query, key, value, mask, bias)[0]


def _products(query: jax.Array, key: jax.Array, mask: jax.Array) -> _Products:
    """Returns the products of queries and keys, (b, h, q, k) float32, the mask, and `MASKED`."""
    products = jnp.matmul(query, key.swapaxes(2, 3), preferred_element_type=jnp.float32)
    return _unfused_on_gpus((products, mask, jnp.float32(MASKED)))


def _unfused_on_gpus(arrays: _Products) -> _Products:
    """Returns the arrays; on GPUs, prevents XLA from fusing them with later operations.

    Otherwise, XLA would write the logits twice. It would also broadcast the mask, the bias and the
    masked logit to the shape of the products and store them, partly before the loop over layers.
    """
    barrier = jax.lax.optimization_barrier
    unfused: _Products = jax.lax.platform_dependent(
        arrays, cuda=barrier, rocm=barrier, default=lambda arrays: arrays
    )
    return unfused


def _logits(
    products: jax.Array, mask: jax.Array, masked: jax.Array, bias: jax.Array | None
) -> jax.Array:
    return jnp.where(mask, products if bias is None else products + bias, masked)


def _attend_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    first = _products(query, key, mask)
    top = jnp.max(_logits(*first, bias), axis=-1, keepdims=True)
    # On TPUs, computing the products twice is faster than writing the logits to memory and reading
    # them back. XLA then fuses the second products with the exponentials, so it writes only the
    # rounded exponentials and their sums. On other platforms, the first products are used again.
    second: _Products = jax.lax.platform_dependent(
        *(query, key, mask, first),
        tpu=lambda query, key, mask, _: _products(jax.lax.optimization_barrier(query), key, mask),
        default=lambda query, key, mask, first: _unfused_on_gpus(first),
    )
    weights = jnp.exp(_logits(*second, bias) - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    # Divide after multiplying by the values, as the result has fewer elements than the weights.
    y = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=jnp.float32) / total
    y, top, total = (checkpoint_name(x, SAVED) for x in (y.astype(value.dtype), top, total))
    return y, (query, key, value, mask, bias, y, top, total)


def _attend_backward(saved: tuple[Any, ...], d_y: jax.Array) -> tuple[jax.Array | None, ...]:
    query, key, value, mask, bias, y, top, total = saved
    dtype = value.dtype
    weights = jnp.exp(_logits(*_products(query, key, mask), bias) - top)
    weights = (weights / total).astype(dtype)
    d_value = jnp.matmul(weights.swapaxes(2, 3), d_y)
    d_weights = jnp.matmul(d_y, value.swapaxes(2, 3), preferred_element_type=jnp.float32)
    mean = jnp.sum(d_y.astype(jnp.float32) * y.astype(jnp.float32), axis=-1, keepdims=True)
    d_logits = jnp.where(mask, weights.astype(jnp.float32) * (d_weights - mean), 0.0)
    d_bias = None
    if bias is not None:
        d_bias = jax.lax.platform_dependent(
            d_logits,
            # On CPUs, a matrix product is XLA's fastest way to sum over rows.
            cpu=lambda d: jnp.tensordot(jnp.ones(d.shape[0], d.dtype), d, 1)[None],
            default=lambda d: jnp.sum(d, axis=0, keepdims=True),
        )
    d_logits = d_logits.astype(dtype)
    d_query = jnp.matmul(d_logits, key)
    d_key = jnp.matmul(d_logits.swapaxes(2, 3), query)
    return d_query, d_key, d_value, None, d_bias


_attend.defvjp(_attend_forward, _attend_backward)
