"""One step of the decoder, with a cache of keys and values.

In shapes, `b` is the number of examples, `n` is the number of sequences per example (samples or
beams, which share the encoded inputs), `h` is the number of heads, `k` is the number of keys, and
`d` is the head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mtf.models import t5
from mtf.models.attention import MASKED
from mtf.models.settings import T5Config
from mtf.models.stacking import layers_of
from mtf.models.types import Dropout, Params
from mtf.partitioning.mesh import constrain

NO_DROPOUT = Dropout(0.0, None)


class KeyValueCache(NamedTuple):
    """Cached keys and values, in the layout that the matrix products use.

    Values are (b, h, k, d). Keys are (b, h, k, d) if each row has one query, and (b, h, d, k) if
    each row has several queries. In both cases, the layout is the one that is faster on CPUs.

    The beams of an example share a row, because each beam attends to keys of other beams. A shared
    row has k = max_length · n keys, and the n keys of a position are adjacent. If sequences are
    independent, each one has a separate row, so there are b · n rows of k = max_length keys.
    """

    key: jax.Array
    value: jax.Array


class Prepared(NamedTuple):
    """The inputs that all decoding steps share.

    Attributes:
      embedding: parameters for `t5.embed`, in the dtype of the activations.
      layers: parameters of the decoder's layers, in the dtype of the activations.
      encoded: for each layer, the keys and values computed from the encoder's output.
      encoded_mask: (b, 1, 1, k) bool, True for tokens and False for padding.
      biases: (h, 2·max_length - 1) float32, biases of self-attention, indexed by key position minus
        query position plus max_length - 1; one array per layer or one array for all layers.
      norm: parameters of the final layer norm.
      output: (emb, vocab) float32, kernel of the output projection.
    """

    embedding: Params
    layers: list[Params]
    encoded: list[KeyValueCache]
    encoded_mask: jax.Array
    biases: list[jax.Array]
    norm: Params
    output: jax.Array


def prepare(
    config: T5Config, params: Params, encoder_input_tokens: jax.Array, max_length: int, n: int
) -> Prepared:
    """Runs the encoder and computes the inputs that all decoding steps share.

    `encoder_input_tokens` are (b, length) token ids, 0 for padding. `n` is the number of sequences
    that are decoded for each example.
    """
    dtype = jnp.dtype(config.dtype)
    segments = (encoder_input_tokens > 0).astype(jnp.int32)
    encoded = t5.encode(config, params, encoder_input_tokens, segments)
    stack = params["decoder"]
    own_layers = layers_of(stack)
    layers = [jax.tree.map(lambda x: x.astype(dtype), layer) for layer in own_layers]

    table = params["token_embedder"]["embedding"].astype(dtype)
    query, keys = jnp.asarray([max_length - 1]), jnp.arange(2 * max_length - 1)
    biases = [
        t5.relpos_bias(config, each, query, keys, bidirectional=False)[0, :, 0]
        for each in (own_layers if config.relpos_bias_per_layer else [stack])
    ]
    return Prepared(
        embedding={"token_embedder": {"embedding": constrain(table, "vocab", None)}},
        layers=layers,
        encoded=[
            _laid_out(*t5.keys_and_values(config, layer["encoder_decoder_attention"], encoded), n)
            for layer in layers
        ],
        encoded_mask=(segments > 0)[:, None, None, :],
        biases=biases,
        norm=stack["decoder_norm"],
        output=t5.output_kernel(config, params),
    )


def empty_caches(
    config: T5Config, rows: int, max_length: int, num_beams: int = 1
) -> list[KeyValueCache]:
    """Returns an empty cache for each layer; see `KeyValueCache` for the dimensions."""
    num_keys = max_length * num_beams
    zeros = jnp.zeros((rows, num_keys, config.num_heads, config.head_dim), config.dtype)
    return [_laid_out(zeros, zeros, num_beams) for _ in range(config.num_decoder_layers)]


def decode_step(
    config: T5Config,
    prepared: Prepared,
    caches: list[KeyValueCache],
    tokens: jax.Array,
    position: jax.Array,
    ancestors: jax.Array | None = None,
) -> tuple[jax.Array, list[KeyValueCache]]:
    """Runs the decoder on one token of each sequence; returns the logits of the next token.

    The cache is not copied when beams are reordered. Instead, a mask restricts each beam to the
    keys that its ancestors wrote.

    Args:
      config: the architecture.
      prepared: result of `prepare`.
      caches: the cache of each layer.
      tokens: (b, n) token ids at `position`; 0 at the first position.
      position: scalar position of the tokens.
      ancestors: (b, n, max_length) int32, for each beam and position, the index of the beam that
        wrote the keys; None if sequences are independent.

    Returns:
      (b, n, vocab) float32 logits, and the updated caches, which include this position.
    """
    max_length = (prepared.biases[0].shape[1] + 1) // 2
    biases = [
        jax.lax.dynamic_slice_in_dim(bias, max_length - 1 - position, max_length, 1)
        for bias in prepared.biases
    ]
    seen = (jnp.arange(max_length) <= position)[None, None, :]  # (b, n, max_length)
    if ancestors is not None:
        places = jnp.arange(tokens.shape[1])
        seen = seen[..., None] & (ancestors[..., None] == places)
        seen = seen.reshape(*tokens.shape, -1)
        biases = [jnp.repeat(bias, tokens.shape[1], axis=1) for bias in biases]
    if not config.relpos_bias_per_layer:
        biases *= len(prepared.layers)
    x = t5.embed(config, prepared.embedding, tokens)
    new_caches = []
    layers = zip(prepared.layers, prepared.encoded, caches, biases, strict=True)
    for params, encoded, cache, bias in layers:

        def self_attention(
            p: Params, y: jax.Array, cache: KeyValueCache = cache, bias: jax.Array = bias
        ) -> tuple[jax.Array, KeyValueCache]:
            own = y.reshape(cache.key.shape[0], -1, y.shape[-1])
            num_beams = own.shape[1]
            new = _laid_out(*t5.keys_and_values(config, p, own), num_beams)
            at, axis = position * num_beams, 2 if num_beams == 1 else 3
            cache = KeyValueCache(
                jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, at, axis),
                jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, at, axis=2),
            )
            z = _attention(config, p, own, cache, seen[:, None], bias[None, :, None])
            return z.reshape(y.shape), cache

        def cross_attention(p: Params, y: jax.Array, encoded: KeyValueCache = encoded) -> jax.Array:
            return _attention(config, p, y, encoded, prepared.encoded_mask, None)

        x, cache = t5.decoder_layer(config, params, x, self_attention, cross_attention, NO_DROPOUT)
        new_caches.append(cache)
    x = t5.layer_norm(x, prepared.norm)
    logits = t5.dense(x, prepared.output, jnp.dtype(jnp.float32))
    return constrain(logits, "batch", None, "vocab"), new_caches


def _attention(
    config: T5Config,
    params: Params,
    x: jax.Array,
    cache: KeyValueCache,
    mask: jax.Array,
    bias: jax.Array | None,
) -> jax.Array:
    """Computes `t5.attention` over a cache; `x` and the result are (b, n, emb)."""
    query = t5.split_heads(config, t5.dense(x, params["query"]["kernel"]))
    product = "bnhd,bhkd->bhnk" if x.shape[1] == 1 else "bnhd,bhdk->bhnk"
    logits = jnp.einsum(product, query, cache.key, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias
    weights = jax.nn.softmax(jnp.where(mask, logits, MASKED), axis=-1).astype(x.dtype)
    # An einsum would swap the operands, which is slow on CPUs.
    y = jnp.matmul(weights, cache.value).transpose(0, 2, 1, 3)
    return t5.dense(y.reshape(*y.shape[:2], -1), params["out"]["kernel"])


def _laid_out(key: jax.Array, value: jax.Array, num_queries: int) -> KeyValueCache:
    """Returns (b, k, h, d) keys and values as a cache, split across devices by row and head."""
    key = key.transpose(0, 2, 1, 3) if num_queries == 1 else key.transpose(0, 2, 3, 1)
    value = value.transpose(0, 2, 1, 3)
    return KeyValueCache(*(constrain(x, "batch", "heads", None, None) for x in (key, value)))
