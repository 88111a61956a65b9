"""Decodes targets for a batch of inputs."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mtf.inference.decoding.beam_search import beam_search
from mtf.inference.decoding.sample import sample
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.decoding.step import Prepared, prepare
from mtf.models.settings import T5Config
from mtf.models.types import Params

EOS_ID = 1


class Generated(NamedTuple):
    """The sequences decoded for each example, best first.

    Attributes:
      tokens: (batch, num_return, max_length) int32, token ids up to and including EOS, then zeros.
      scores: (batch, num_return) float32, log-probability under the model, independent of
        temperature, `top_k` and `top_p`. For beam search, the length penalty is included.
    """

    tokens: jax.Array
    scores: jax.Array


def generate(
    network: T5Config,
    params: Params,
    encoder_input_tokens: jax.Array,
    decoding: DecodingConfig,
    *,
    eos_id: int = EOS_ID,
    seeds: jax.Array | np.ndarray | None = None,
) -> Generated:
    """Decodes tokens until all rows have ended or `max_length` is reached.

    The result of a row depends on its inputs, its seed and the settings, but not on other rows. The
    function is compiled once for each shape, network and `decoding`; changing only `decoding.seed`
    does not cause a recompilation.

    Args:
      network: the architecture.
      params: the parameters, either unrolled or stacked.
      encoder_input_tokens: (batch, length) token ids, 0 for padding. The result of a row that
        contains only padding is empty and has a score of 0.
      decoding: the method and its settings.
      eos_id: token id of EOS.
      seeds: (batch,) uint32, seeds of the rows, which sampling combines with `decoding.seed`; None
        for row numbers.
    """
    if seeds is None:
        seeds = np.arange(encoder_input_tokens.shape[0], dtype=np.uint32)
    # In a single program, XLA would choose a layout of tied embeddings that is slow on CPUs, so the
    # encoder and the decoder are compiled separately.
    seed, settings = np.uint32(decoding.seed), dataclasses.replace(decoding, seed=0)
    n = decoding.num_beams if decoding.method == "beam" else decoding.num_return
    begun = _begin(network, params, encoder_input_tokens, decoding.max_length, n, seed, seeds)
    return _decode(network, settings, eos_id, *begun)


@functools.partial(jax.jit, static_argnames=("network", "max_length", "n"))
def _begin(
    network: T5Config,
    params: Params,
    encoder_input_tokens: jax.Array,
    max_length: int,
    n: int,
    seed: jax.Array | np.uint32,
    seeds: jax.Array | np.ndarray,
) -> tuple[Prepared, jax.Array, jax.Array]:
    """Runs the encoder; returns its results, random keys, and which rows contain only padding."""
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(seeds)
    empty = ~jnp.any(encoder_input_tokens > 0, axis=1)
    return prepare(network, params, encoder_input_tokens, max_length, n), keys, empty


@functools.partial(jax.jit, static_argnames=("network", "decoding", "eos_id"))
def _decode(
    network: T5Config,
    decoding: DecodingConfig,
    eos_id: int,
    prepared: Prepared,
    keys: jax.Array,
    empty: jax.Array,
) -> Generated:
    if decoding.method != "beam":
        return Generated(*sample(network, prepared, decoding, eos_id, keys, empty))
    tokens, scores = beam_search(network, prepared, decoding, eos_id, empty)
    return Generated(tokens[:, : decoding.num_return], scores[:, : decoding.num_return])
