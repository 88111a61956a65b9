"""Beam search with the rules of T5X or transformers for scores and stopping.

Each step extends the n live hypotheses by every token and selects the 2·n best candidates. At most
n of these end with EOS, so at least n can continue. The n best finished hypotheses are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.decoding.step import KeyValueCache, Prepared, decode_step, empty_caches
from mtf.models.settings import T5Config


class BeamState(NamedTuple):
    """The state of a search for b examples with n beams. Hypotheses are sorted, best first.

    Attributes:
      i: number of tokens decoded.
      tokens: (b, n, max_length), tokens of the live hypotheses.
      log_probs: (b, n), log-probabilities of the live hypotheses; unused entries are -inf.
      ancestors: (b, n, max_length), see `decode_step`.
      finished: (b, n, max_length), tokens of the finished hypotheses.
      scores: (b, n), scores of the finished hypotheses; unused entries are -inf.
      done: (b,) bool, whether the finished hypotheses of an example are final.
      caches: the cache of each layer.
    """

    i: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    ancestors: jax.Array
    finished: jax.Array
    scores: jax.Array
    done: jax.Array
    caches: list[KeyValueCache]


def beam_search(
    config: T5Config, prepared: Prepared, decoding: DecodingConfig, eos_id: int, empty: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns (b, n, max_length) int32 tokens and (b, n) float32 scores, best first.

    If fewer than n hypotheses have ended, the best unfinished hypotheses follow; their scores are
    their log-probabilities. `empty`, (b,) bool, is True for rows that contain only padding.
    """
    batch, n, max_length = empty.shape[0], decoding.num_beams, decoding.max_length
    huggingface = decoding.length_penalty_form == "hf"
    places = jnp.arange(n, dtype=jnp.int32)

    def penalty(length: jax.Array | int) -> jax.Array:
        base = jnp.asarray(length, jnp.float32)
        return (base if huggingface else (5.0 + base) / 6.0) ** decoding.length_penalty

    def step(state: BeamState) -> BeamState:
        i = state.i
        # At the current position, each beam is its own ancestor, because it writes the keys itself.
        own = jnp.broadcast_to(places[None, :, None], (batch, n, 1))
        ancestors = jax.lax.dynamic_update_slice_in_dim(state.ancestors, own, i, axis=2)
        last = jax.lax.dynamic_index_in_dim(state.tokens, jnp.maximum(i - 1, 0), 2, False)
        logits, caches = decode_step(config, prepared, state.caches, last, i, ancestors)

        # The best candidates of a row are among the best candidates of each beam in the row.
        best, ids = jax.lax.top_k(logits, 2 * n)  # (b, n, 2n)
        best = best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        best = (best + state.log_probs[..., None]).reshape(batch, -1)
        log_probs, chosen = jax.lax.top_k(best, 2 * n)  # (b, 2n)
        parents = chosen // (2 * n)
        ids = jnp.take_along_axis(ids.reshape(batch, -1), chosen, axis=1).astype(jnp.int32)
        tokens = _take(state.tokens, parents)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, ids[..., None], i, axis=2)

        ends = ids == eos_id
        if huggingface:
            ends = ends | (i + 1 == max_length)
        live, kept = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), n)
        may_finish = ends & ~state.done[:, None]
        if huggingface:
            may_finish = may_finish & (jnp.arange(2 * n) < n)
        new = jnp.where(may_finish, log_probs / penalty(i + 1), -jnp.inf)
        scores, order = jax.lax.top_k(jnp.concatenate([state.scores, new], axis=1), n)
        finished = _take(jnp.concatenate([state.finished, tokens], axis=1), order)
        return BeamState(
            i=i + 1,
            tokens=_take(tokens, kept),
            log_probs=live,
            ancestors=_take(ancestors, jnp.take_along_axis(parents, kept, axis=1)),
            finished=finished,
            scores=scores,
            done=state.done | settled(live, scores, i + 1),
            caches=caches,
        )

    def settled(live: jax.Array, scores: jax.Array, length: jax.Array) -> jax.Array:
        """Returns whether the finished hypotheses of each row are final, (b,) bool."""
        all_finished = jnp.isfinite(scores[:, -1])
        if huggingface and decoding.early_stopping:
            return all_finished
        # With T5X's rule, no continuation of any length can score better. With transformers' rule,
        # the best live hypothesis would not score better if it ended now.
        reached = length if huggingface else max_length
        return all_finished & (live[:, 0] / penalty(reached) <= scores[:, -1])

    def unfinished(state: BeamState) -> jax.Array:
        return (state.i < max_length) & ~jnp.all(state.done)

    nothing = jnp.zeros((batch, n, max_length), jnp.int32)
    none = jnp.full((batch, n), -jnp.inf, jnp.float32)
    end = jax.lax.while_loop(
        unfinished,
        step,
        BeamState(
            i=jnp.zeros((), jnp.int32),
            tokens=nothing,
            log_probs=none.at[:, 0].set(0.0),
            ancestors=nothing,
            finished=nothing,
            scores=none,
            done=empty,
            caches=empty_caches(config, batch, max_length, n),
        ),
    )
    num_finished = jnp.sum(jnp.isfinite(end.scores), axis=1, keepdims=True)
    order = jnp.where(places < num_finished, places, n + places - num_finished)
    tokens = _take(jnp.concatenate([end.finished, end.tokens], axis=1), order)
    scores = jnp.take_along_axis(jnp.concatenate([end.scores, end.log_probs], 1), order, axis=1)
    return jnp.where(empty[:, None, None], 0, tokens), jnp.where(empty[:, None], 0.0, scores)


def _take(x: jax.Array, places: jax.Array) -> jax.Array:
    """Selects the hypotheses at the indices `places`, (b, m), from `x`, (b, n, length)."""
    return jnp.take_along_axis(x, places[..., None], axis=1)
