"""Samples follow the model's distribution, restricted as asked."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from mtf.inference.decoding.generate import Generated, generate
from mtf.inference.decoding.sample import restrict
from mtf.inference.decoding.settings import DecodingConfig
from tests.decoding.test_generate import LENGTH, eos, log_probs_of_rows, params, prompts
from tests.models.test_t5 import SMALL


def restricted(probs: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """By sorting: the k best, or the fewest best that have top_p together."""
    order = np.argsort(-probs)
    keep = len(probs)
    if top_k:
        keep = top_k
    if top_p < 1:
        keep = int(np.searchsorted(np.cumsum(probs[order]), top_p)) + 1
    out = np.zeros_like(probs)
    out[order[:keep]] = probs[order[:keep]]
    return out / out.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 7, 1.0), (1.3, 0, 0.6)]
)
def test_distribution(temperature: float, top_k: int, top_p: float) -> None:
    """The first token of 4,000 samples; chi-square with fixed seeds."""
    decoding = DecodingConfig(
        method="sample",
        max_length=1,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_return=1000,
        seed=3,
    )
    row = prompts()[:1].repeat(4, axis=0)
    tokens = np.asarray(generate(SMALL, params(), row, decoding).tokens).ravel()
    log_probs = log_probs_of_rows()[0](())
    probs = np.exp(log_probs / temperature)
    expected = restricted(probs / probs.sum(), top_k, top_p) * tokens.size
    counts = np.bincount(tokens, minlength=SMALL.vocab_size)
    assert not counts[expected == 0].any()
    # Tokens that are expected fewer than five times count as one.
    often = expected >= 5
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    assert len(wanted) > 2
    assert stats.chisquare(observed, wanted).pvalue > 0.01


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_fewest_tokens(top_p: float) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (2, 3, 500)).astype(np.float32)
    kept = np.isfinite(restrict(jax.numpy.asarray(logits), DecodingConfig("sample", top_p=top_p)))
    probs = np.asarray(jax.nn.softmax(logits, axis=-1), np.float64)
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(kept[i], restricted(probs[i], 0, top_p) > 0)


def sample(**settings: float) -> Generated:
    decoding = DecodingConfig(method="sample", max_length=LENGTH, **settings)  # type: ignore[arg-type]
    return generate(SMALL, params(), prompts(), decoding, eos_id=eos())


def test_no_temperature_or_one_token_is_greedy() -> None:
    greedy = generate(SMALL, params(), prompts(), DecodingConfig(max_length=LENGTH), eos_id=eos())
    for settings in ({"temperature": 0.0}, {"top_k": 1}):
        ours = sample(**settings)
        np.testing.assert_array_equal(ours.tokens, greedy.tokens)
        np.testing.assert_allclose(ours.scores, greedy.scores, rtol=1e-5)


@pytest.mark.slow
def test_seeds() -> None:
    first, other = sample(seed=0, num_return=4), sample(seed=1, num_return=4)
    np.testing.assert_array_equal(first.tokens, sample(seed=0, num_return=4).tokens)
    assert (np.asarray(first.tokens) != np.asarray(other.tokens)).any()
    # Equal inputs with unequal seeds are drawn apart, with equal seeds alike.
    row = prompts()[:1].repeat(3, axis=0)
    decoding = DecodingConfig(method="sample", max_length=LENGTH)
    seeds = np.asarray([5, 6, 5], np.uint32)
    tokens = np.asarray(generate(SMALL, params(), row, decoding, seeds=seeds).tokens)
    np.testing.assert_array_equal(tokens[0], tokens[2])
    assert (tokens[0] != tokens[1]).any()


def test_scores_are_log_probabilities_of_the_model() -> None:
    ours = sample(temperature=0.8, num_return=2)
    for row, log_probs in enumerate(log_probs_of_rows()):
        for tokens, score in zip(
            np.asarray(ours.tokens)[row].tolist(), np.asarray(ours.scores)[row], strict=True
        ):
            length = tokens.index(eos()) + 1 if eos() in tokens else LENGTH
            pieces = [log_probs(tuple(tokens[:i]))[tokens[i]] for i in range(length)]
            np.testing.assert_allclose(score, sum(pieces), rtol=1e-5)
