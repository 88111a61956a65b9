"""Cross-entropy with z-loss and label smoothing (T5X: `losses.py`), computed in chunks.

For mT5, float32 logits of shape (batch, length, vocabulary) would be by far the largest array in a
training step. The logits are therefore computed for a few positions at a time, together with the
gradients.

`custom_loss` calls the user's loss function instead (see `ModelConfig.loss_fn`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mtf.base.errors import UserError
from mtf.models.argmax import argmax
from mtf.models.settings import LossFunction

# This prefix is added to the names of the metrics that a custom loss function returns.
PREFIX = "loss_fn/"

_EXPECTED = (
    "expected a tuple (loss, metrics): loss must be a float scalar, the sum over the tokens of the "
    "batch, and metrics must be a dict mapping names to scalars"
)


class LossSums(NamedTuple):
    """Float32 scalars, each a sum over the tokens of a batch."""

    loss: jax.Array  # weighted cross-entropy plus z-loss
    z_loss: jax.Array  # weighted z-loss
    num_correct: jax.Array  # number of tokens with positive weight that are predicted correctly
    token_loss: jax.Array | None = None  # `loss` with the weights of the mean over tokens


class _Operands(NamedTuple):
    hidden: jax.Array
    kernel: jax.Array
    targets: Any = None
    weights: Any = None
    token_weights: Any = None


class _Options(NamedTuple):
    z_loss: float
    label_smoothing: float
    chunk: int


def weighted_cross_entropy(
    hidden: jax.Array,
    kernel: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    token_weights: jax.Array | None = None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
) -> LossSums:
    """Returns the weighted cross-entropy of softmax(hidden @ kernel), and other sums over tokens.

    The entropy of the smoothed labels is subtracted, so that a perfect prediction has a loss of 0.

    Args:
      hidden: the decoder outputs, (batch, length, emb), of any float dtype. The product with
        `kernel` is computed in float32.
      kernel: the output projection, (emb, vocabulary) float32.
      targets: the ids of the target tokens, (batch, length).
      weights: the weights of the tokens, (batch, length) float32; they get no gradients.
      token_weights: the weights for `token_loss`, of the same shape; None for no `token_loss`.
      z_loss: the weight of the term log²Z.
      label_smoothing: the probability mass that is distributed over the incorrect tokens.
      chunk: the number of positions whose logits are computed at a time; None for all positions.
    """
    length = hidden.shape[1]
    chunk = length if chunk is None else min(chunk, length)
    padding = -length % chunk
    if padding:
        hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0)))
        targets = jnp.pad(targets, ((0, 0), (0, padding)))
        weights = jnp.pad(weights, ((0, 0), (0, padding)))
        if token_weights is not None:
            token_weights = jnp.pad(token_weights, ((0, 0), (0, padding)))
    operands = _Operands(hidden, kernel, targets, weights.astype(jnp.float32), token_weights)
    return _cross_entropy(operands, _Options(z_loss, label_smoothing, chunk))


def _chunk(
    operands: _Operands, options: _Options, with_gradients: bool
) -> tuple[LossSums, _Operands | None]:
    """Returns the sums of a chunk and, if `with_gradients`, the gradients of `loss`, else None."""
    hidden, kernel, targets, weights, token_weights = operands
    z_loss, label_smoothing, _ = options
    vocab = kernel.shape[1]
    rows = hidden.reshape(-1, hidden.shape[-1]).astype(jnp.float32)  # (batch·chunk, emb)
    targets, weights = targets.reshape(-1), weights.reshape(-1)
    logits = rows @ kernel
    is_target = jnp.arange(vocab)[None, :] == targets[:, None]

    # The target has probability `confidence`, and every other token has probability `low`.
    confidence, low = 1.0 - label_smoothing, label_smoothing / (vocab - 1)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    cross_entropy = log_z - (confidence - low) * target_logit
    if label_smoothing:
        cross_entropy -= low * jnp.sum(logits, axis=-1)
        cross_entropy += confidence * math.log(confidence) + (vocab - 1) * low * math.log(low)
    z = z_loss * jnp.square(log_z)
    # This takes one pass less over the logits than an argmax. A tie counts as correct.
    is_correct = target_logit == jnp.max(logits, axis=-1)
    counted = (weights > 0).astype(jnp.float32)
    loss = jnp.sum((cross_entropy + z) * weights)
    token_loss = None
    if token_weights is not None:
        token_loss = jnp.sum((cross_entropy + z) * token_weights.reshape(-1))
    num_correct = jnp.sum(is_correct * counted)
    sums = LossSums(loss, jnp.sum(z * weights), num_correct, token_loss)
    if not with_gradients:
        return sums, None
    probabilities = jnp.exp(logits - log_z[:, None]) * (1.0 + 2.0 * z_loss * log_z)[:, None]
    expected = jnp.where(is_target, confidence, low)
    d_logits = (probabilities - expected) * weights[:, None]
    d_hidden = (d_logits @ kernel.T).reshape(hidden.shape).astype(hidden.dtype)
    return sums, _Operands(d_hidden, rows.T @ d_logits)


def _all_chunks(
    operands: _Operands, options: _Options, with_gradients: bool = True
) -> tuple[LossSums, _Operands | None]:
    hidden, kernel, *others = operands
    num_chunks = hidden.shape[1] // options.chunk
    if num_chunks == 1:
        return _chunk(operands, options, with_gradients)

    def split(x: jax.Array) -> jax.Array:  # (batch, length, …) → (chunks, batch, chunk, …)
        return jnp.moveaxis(x.reshape(x.shape[0], num_chunks, -1, *x.shape[2:]), 1, 0)

    def body(carry: Any, xs: Any) -> tuple[Any, Any]:
        sums, d_kernel = carry
        h, *rest = xs
        new, gradients = _chunk(_Operands(h, kernel, *rest), options, with_gradients)
        sums = jax.tree.map(jnp.add, sums, new)
        if gradients is None:
            return (sums, d_kernel), None
        return (sums, d_kernel + gradients.kernel), gradients.hidden

    d_kernel = jnp.zeros_like(kernel) if with_gradients else None
    zero = jnp.zeros((), jnp.float32)
    sums = LossSums(zero, zero, zero, None if operands.token_weights is None else zero)
    xs = jax.tree.map(split, (hidden, *others))
    (sums, d_kernel), d_hidden = jax.lax.scan(body, (sums, d_kernel), xs)
    if d_kernel is None:
        return sums, None
    return sums, _Operands(jnp.moveaxis(d_hidden, 0, 1).reshape(hidden.shape), d_kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _cross_entropy(operands: _Operands, options: _Options) -> LossSums:
    return _all_chunks(operands, options, with_gradients=False)[0]


def _backward(options: _Options, gradients: _Operands, cotangents: LossSums) -> tuple[_Operands]:
    scale = cotangents.loss
    d_hidden = gradients.hidden * scale.astype(gradients.hidden.dtype)
    return (_Operands(d_hidden, gradients.kernel * scale),)


_cross_entropy.defvjp(_all_chunks, _backward)


def token_weights(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weights of the target tokens of a batch, (batch, length) float32."""
    targets = batch["decoder_target_tokens"]
    return batch.get("decoder_loss_weights", targets > 0).astype(jnp.float32)


def normalizing_factor_and_weights(
    factor: float | str | None, batch: Mapping[str, jax.Array]
) -> tuple[jax.Array | float, jax.Array]:
    """Returns the divisor of a batch's loss, and the weights in it, (batch, length) float32.

    `batch` must not be split into microbatches, so that the loss and the gradients do not depend on
    the number of microbatches. (T5X, in contrast, normalizes each microbatch separately.) For
    `factor`, see `ModelConfig.loss_normalizing_factor` (T5X: `SpecialLossNormalizingFactor`).
    """
    targets, weights = batch["decoder_target_tokens"], token_weights(batch)
    if factor == "NUM_REAL_TARGET_TOKENS":
        return jnp.sum(weights), weights
    if factor == "NUM_TOTAL_TARGET_TOKENS":
        return float(targets.size), weights
    if factor == "AVERAGE_PER_SEQUENCE":
        segments = batch.get("decoder_segment_ids")
        if segments is None:
            total = jnp.sum(weights, axis=-1, keepdims=True)
        else:
            same = segments[:, :, None] == segments[:, None, :]  # (batch, length, length)
            total = jnp.einsum("bij,bj->bi", same.astype(jnp.float32), weights)
        weights = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), 0.0)
        return jnp.sum(weights), weights
    return (1.0 if factor is None else float(factor)), weights


def custom_loss(
    loss_fn: LossFunction, logits: jax.Array, batch: Mapping[str, jax.Array], weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss and a dict with the keys "loss", "z_loss", "num_correct" and "loss_fn/NAME".

    NAME is a metric of `loss_fn`. Raises UserError if `loss_fn` does not return a loss and metrics.
    """
    returned = loss_fn(logits, batch, weights)

    def check(holds: bool, found: str) -> None:
        if not holds:
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise UserError(f"model.loss_fn: {name} returned {found}; {_EXPECTED}")

    check(isinstance(returned, tuple) and len(returned) == 2, shown(returned))
    loss, metrics = returned
    check(is_scalar(loss), f"a loss that is {shown(loss)}")
    check(isinstance(metrics, Mapping), f"metrics that are {shown(metrics)}")
    for metric, value in metrics.items():
        check(is_scalar(value), f"a metric {metric!r} that is {shown(value)}")
    loss = jnp.asarray(loss, jnp.float32)
    correct = (argmax(logits) == batch["decoder_target_tokens"]) & (weights > 0)
    sums = {
        "loss": loss,
        "z_loss": jnp.zeros((), jnp.float32),
        "num_correct": jnp.sum(correct, dtype=jnp.float32),
    }
    return loss, sums | {f"{PREFIX}{k}": jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def is_scalar(value: Any) -> bool:
    """Returns whether a value from a user's function is a number or a scalar array."""
    return isinstance(value, int | float | jax.Array) and jnp.shape(value) == ()


def shown(value: Any) -> str:
    """Returns a description of the type of a value, for use in error messages."""
    if isinstance(value, jax.Array):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"a {type(value).__name__}"
