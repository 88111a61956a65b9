"""Decoding written down plainly: Python lists, and a whole forward pass for every token."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import numpy as np

from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.models.types import Params

_APPLY = jax.jit(t5.apply, static_argnums=0)
LogProbs = Callable[[tuple[int, ...]], np.ndarray]


def log_probs_of(config: T5Config, params: Params, inputs: np.ndarray, max_length: int) -> LogProbs:
    """For one row of inputs: the tokens so far → log-probabilities (vocab,) of the next."""

    @functools.cache
    def log_probs(prefix: tuple[int, ...]) -> np.ndarray:
        decoder = np.zeros((1, max_length), np.int32)
        decoder[0, 1 : len(prefix) + 1] = prefix
        batch = {
            "encoder_input_tokens": inputs[None],
            "decoder_input_tokens": decoder,
            "decoder_target_tokens": np.ones((1, max_length), np.int32),
        }
        logits = np.asarray(_APPLY(config, params, batch), np.float64)[0, len(prefix)]
        return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())

    return log_probs


def greedy(log_probs: LogProbs, max_length: int, eos: int) -> tuple[list[int], float]:
    """The best token at every step, and the sum of its log-probabilities."""
    tokens: list[int] = []
    score = 0.0
    while len(tokens) < max_length and eos not in tokens:
        values = log_probs(tuple(tokens))
        tokens.append(int(np.argmax(values)))
        score += float(values[tokens[-1]])
    return tokens, score


Hypothesis = tuple[float, list[int]]


def beam_t5x(
    log_probs: LogProbs, max_length: int, eos: int, num_beams: int, alpha: float
) -> list[Hypothesis]:
    """Beam search with the brevity penalty, never stopped early: stopping must change nothing.

    Finished hypotheses first, then the unfinished.
    """
    live: list[Hypothesis] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for _ in range(max_length):
        live, ended = _extend(log_probs, live, eos, num_beams)
        finished += [(s / ((5 + len(tokens)) / 6) ** alpha, tokens) for s, tokens in ended]
        finished = sorted(finished, key=lambda h: -h[0])[:num_beams]
    return (finished + live)[:num_beams]


def _extend(
    log_probs: LogProbs, live: list[Hypothesis], eos: int, num_beams: int
) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """The best continuations of the live hypotheses: those that go on, and those that end."""
    best = [
        (score + float(value), [*tokens, token])
        for score, tokens in live
        for token, value in enumerate(log_probs(tuple(tokens)))
    ]
    best = sorted(best, key=lambda h: -h[0])[: 2 * num_beams]
    going_on = [h for h in best if h[1][-1] != eos][:num_beams]
    return going_on, [h for h in best if h[1][-1] == eos]
