"""Greedy decoding on a key-value cache."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from mtf.models import t5
from mtf.models.config import T5Config
from mtf.models.stacking import layers_of

EOS_ID = 1


@functools.partial(jax.jit, static_argnames=("config", "max_length", "eos_id"))
def greedy(
    config: T5Config,
    params: t5.Params,
    encoder_input_tokens: jax.Array,
    max_length: int,
    eos_id: int = EOS_ID,
) -> jax.Array:
    """The most probable token at every step, until all rows have ended.

    Keys and values of the encoder's output are computed once, those of the decoder's past kept.

    Args:
      config: the network.
      params: unrolled or stacked.
      encoder_input_tokens: (batch, length) ids, 0 is padding.
      max_length: tokens to decode at most.
      eos_id: ends a row.

    Returns:
      (batch, max_length) int32: the tokens, EOS included, then zeros.
    """
    batch = encoder_input_tokens.shape[0]
    segments = (encoder_input_tokens > 0).astype(jnp.int32)
    encoded = t5.encode(config, params, encoder_input_tokens, segments)
    stack = params["decoder"]
    layers = layers_of(stack)
    cross = [t5.keys_and_values(config, p["encoder_decoder_attention"], encoded) for p in layers]
    cross_mask = t5.segment_mask(jnp.ones((batch, 1), jnp.int32), segments)

    shape = (batch, max_length, config.num_heads, config.head_dim)
    empty = jnp.zeros(shape, config.dtype)
    caches = [t5.SelfAttentionCache(empty, empty) for _ in layers]
    key_positions = jnp.arange(max_length)
    no_dropout = t5.Dropout(0.0, None)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, token, ended, output, caches = state
        query = jnp.reshape(i, (1,))
        bias = t5.relpos_bias(
            config, stack["relpos_bias"], query, key_positions, bidirectional=False
        )
        mask = (key_positions <= i)[None, None, None, :]
        x = t5.embed(config, params, token[:, None])
        new_caches = []
        for p, kv, cache in zip(layers, cross, caches, strict=True):
            x, new = t5.decoder_layer(
                config, p, x, kv, mask, cross_mask, bias, no_dropout, cache, i
            )
            new_caches.append(new)
        x = t5.layer_norm(x, stack["decoder_norm"])
        best = jnp.argmax(t5.logits(config, params, x)[:, 0], axis=-1).astype(jnp.int32)
        best = jnp.where(ended, 0, best)
        output = jax.lax.dynamic_update_slice(output, best[:, None], (0, i))
        return i + 1, best, ended | (best == eos_id), output, new_caches

    def unfinished(state: tuple[Any, ...]) -> jax.Array:
        i, _, ended, _, _ = state
        return (i < max_length) & ~jnp.all(ended)

    start = jnp.zeros((batch,), jnp.int32)
    output = jnp.zeros((batch, max_length), jnp.int32)
    ended = jnp.zeros((batch,), bool)
    return jax.lax.while_loop(unfinished, step, (0, start, ended, output, caches))[3]
