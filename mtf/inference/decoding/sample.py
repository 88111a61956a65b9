"""Greedy decoding and sampling of independent sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.decoding.step import Prepared, decode_step, empty_caches
from mtf.models.argmax import argmax
from mtf.models.settings import T5Config

# Sampling is greedy at or below this temperature (T5X: `decoding.MIN_TEMPERATURE`).
MIN_TEMPERATURE = 1e-4


def sample(
    config: T5Config,
    prepared: Prepared,
    decoding: DecodingConfig,
    eos_id: int,
    keys: jax.Array,
    empty: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Decodes `num_return` sequences for each example, greedily or by sampling.

    `keys` are (b,) random keys. `empty`, (b,) bool, is True for rows that contain only padding.

    Returns:
      (b, n, max_length) int32 tokens and (b, n) float32 log-probabilities, best first.
    """
    batch, n, max_length = keys.shape[0], decoding.num_return, decoding.max_length
    greedy = decoding.method == "greedy" or decoding.temperature <= MIN_TEMPERATURE
    keys = jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n)))(keys)

    def draw(logits: jax.Array, i: jax.Array) -> jax.Array:
        if greedy:
            return argmax(logits)
        step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, i)))(keys)
        return jax.vmap(jax.vmap(jax.random.categorical))(step_keys, restrict(logits, decoding))

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, last, ended, tokens, scores, caches = state
        logits, caches = decode_step(config, prepared, caches, last, i)
        chosen = draw(logits, i).astype(jnp.int32)
        log_probs = jnp.take_along_axis(logits, chosen[..., None], axis=-1)[..., 0]
        log_probs = log_probs - jax.nn.logsumexp(logits, axis=-1)
        scores = jnp.where(ended, scores, scores + log_probs)
        chosen = jnp.where(ended, 0, chosen)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen[..., None], i, axis=2)
        return i + 1, chosen, ended | (chosen == eos_id), tokens, scores, caches

    def unfinished(state: tuple[Any, ...]) -> jax.Array:
        return (state[0] < max_length) & ~jnp.all(state[2])

    start = (
        jnp.zeros((), jnp.int32),
        jnp.zeros((batch, n), jnp.int32),
        jnp.broadcast_to(empty[:, None], (batch, n)),
        jnp.zeros((batch, n, max_length), jnp.int32),
        jnp.zeros((batch, n), jnp.float32),
        empty_caches(config, batch * n, max_length),
    )
    _, _, _, tokens, scores, _ = jax.lax.while_loop(unfinished, step, start)
    order = jnp.argsort(-scores, axis=1, stable=True)
    tokens = jnp.take_along_axis(tokens, order[..., None], axis=1)
    return tokens, jnp.take_along_axis(scores, order, axis=1)


def restrict(logits: jax.Array, decoding: DecodingConfig) -> jax.Array:
    """Applies the temperature, and sets the logits of tokens outside `top_k` or `top_p` to -inf.

    Tokens whose logit equals the smallest logit that is kept are also kept.
    """
    logits = logits / decoding.temperature
    if decoding.top_k and decoding.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, decoding.top_k)[0][..., -1:]
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    if decoding.top_p < 1.0:
        probs = jax.nn.softmax(logits, axis=-1)
        logits = jnp.where(probs >= _nucleus(probs, decoding.top_p), logits, -jnp.inf)
    return logits


def _nucleus(probs: jax.Array, top_p: float) -> jax.Array:
    """Returns the highest threshold such that probabilities not below it sum to at least `top_p`.

    The threshold is determined bit by bit, because nonnegative floats have the same order as their
    bit patterns. This is several times faster than sorting the vocabulary.
    """

    def bit(i: jax.Array, found: jax.Array) -> jax.Array:
        higher = found | (jnp.int32(1) << (30 - i))
        threshold = jax.lax.bitcast_convert_type(higher, jnp.float32)
        mass = jnp.sum(jnp.where(probs >= threshold, probs, 0.0), axis=-1, keepdims=True)
        return jnp.where(mass >= top_p, higher, found)

    zero = jnp.zeros((*probs.shape[:-1], 1), jnp.int32)
    return jax.lax.bitcast_convert_type(jax.lax.fori_loop(0, 31, bit, zero), jnp.float32)
