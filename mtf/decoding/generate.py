"""Decodes targets for a batch of inputs."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mtf.decoding.beam_search import beam_search
from mtf.decoding.sample import sample
from mtf.decoding.settings import DecodingConfig
from mtf.decoding.step import Prepared, prepare
from mtf.errors import UserError
from mtf.models import t5
from mtf.models.settings import T5Config

EOS_ID = 1


class Generated(NamedTuple):
    """The sequences decoded for each example, best first.

    Attributes:
      tokens: (batch, num_return, max_length) int32: token ids up to and including EOS, then 0.
      scores: (batch, num_return) float32: log-probability under the model, without temperature and
        restriction; for beam search, with the length penalty.
    """

    tokens: jax.Array
    scores: jax.Array


def generate(
    network: T5Config,
    params: t5.Params,
    encoder_input_tokens: jax.Array,
    decoding: DecodingConfig,
    *,
    eos_id: int = EOS_ID,
    seeds: jax.Array | np.ndarray | None = None,
) -> Generated:
    """Decodes until all rows have ended or `max_length` is reached.

    The result of a row depends on its inputs, its seed and the settings, not on the other rows.
    Compiles once for each shape, network and setting; another `decoding.seed` does not recompile.

    Args:
      network: the architecture.
      params: parameters, unrolled or stacked.
      encoder_input_tokens: (batch, length) token ids, 0 for padding. A row of only padding gives
        an empty result with score 0.
      decoding: the method and its settings.
      eos_id: id of EOS.
      seeds: (batch,) uint32, combined with `decoding.seed` in sampling; None: the row number.
    """
    if decoding.method == "beam" and 2 * decoding.num_beams > network.vocab_size:
        raise UserError(
            f"num_beams ({decoding.num_beams}) must be at most half of the "
            f"vocabulary size ({network.vocab_size})."
        )
    if seeds is None:
        seeds = np.arange(encoder_input_tokens.shape[0], dtype=np.uint32)
    # Two programs: in a single one, XLA chooses a layout of tied embeddings that is slow on CPUs.
    seed, settings = np.uint32(decoding.seed), dataclasses.replace(decoding, seed=0)
    n = decoding.num_beams if decoding.method == "beam" else decoding.num_return
    begun = _begin(network, params, encoder_input_tokens, decoding.max_length, n, seed, seeds)
    return _decode(network, settings, eos_id, *begun)


@functools.partial(jax.jit, static_argnames=("network", "max_length", "n"))
def _begin(
    network: T5Config,
    params: t5.Params,
    encoder_input_tokens: jax.Array,
    max_length: int,
    n: int,
    seed: jax.Array | np.uint32,
    seeds: jax.Array | np.ndarray,
) -> tuple[Prepared, jax.Array, jax.Array]:
    """Returns the inputs of the steps, a random key for each row, and which rows are padding."""
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
