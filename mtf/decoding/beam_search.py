"""Beam search, with T5X's or transformers' rules for scores and stopping.

Every step extends each live hypothesis by every token and takes the 2·n best candidates, so n of
them continue even if n end. The n best hypotheses that ended are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mtf.decoding.settings import DecodingConfig
from mtf.decoding.step import KeyValueCache, Prepared, decode_step, empty_caches
from mtf.models.settings import T5Config


class BeamState(NamedTuple):
    """The state of the search. Live and finished hypotheses are sorted, best first.

    Attributes:
      i: number of tokens decoded.
      tokens: (b, n, max_length), tokens of live hypotheses.
      log_probs: (b, n), log-probabilities of live hypotheses, -inf for none.
      ancestors: (b, n, max_length), see `decode_step`.
      finished: (b, n, max_length), tokens of finished hypotheses.
      scores: (b, n), scores of finished hypotheses, -inf for none.
      done: (b,), whether a row's finished hypotheses are final.
      caches: cache of each layer.
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

    If fewer than n hypotheses have ended, the best unfinished ones follow, scored by their
    log-probability. `empty`, (b,) bool, marks rows that are padding.
    """
    batch, n, max_length = empty.shape[0], decoding.num_beams, decoding.max_length
    huggingface = decoding.length_penalty_form == "hf"
    places = jnp.arange(n, dtype=jnp.int32)

    def penalty(length: jax.Array | int) -> jax.Array:
        base = jnp.asarray(length, jnp.float32)
        return (base if huggingface else (5.0 + base) / 6.0) ** decoding.length_penalty

    def step(state: BeamState) -> BeamState:
        i = state.i
        # This step writes each beam's keys at the beam's own position in the cache.
        own = jnp.broadcast_to(places[None, :, None], (batch, n, 1))
        ancestors = jax.lax.dynamic_update_slice_in_dim(state.ancestors, own, i, axis=2)
        last = jax.lax.dynamic_index_in_dim(state.tokens, jnp.maximum(i - 1, 0), 2, False)
        logits, caches = decode_step(config, prepared, state.caches, last, i, ancestors)

        # The best candidates of a row are among the best of each of its beams.
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
        """Returns (b,), whether a row's finished hypotheses are final."""
        all_finished = jnp.isfinite(scores[:, -1])
        if huggingface and decoding.early_stopping:
            return all_finished
        # T5X: no continuation of any length can score better. transformers: the best live
        # hypothesis would not score better if it ended here.
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
    """(b, n, length), (b, m) → (b, m, length)."""
    return jnp.take_along_axis(x, places[..., None], axis=1)
