"""Span corruption against its rules, stated a second time."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.data.denoising import corrupt, noise_mask, replace_spans
from mtf.data.objectives import SpanCorruption, span_corruption_lengths
from mtf.errors import UserError
from tests.data.helpers import EOS, restore

VOCAB_SIZE = 32100


def half_to_even(value: Fraction) -> int:
    whole, rest = divmod(value, 1)
    if rest == Fraction(1, 2):
        return int(whole) + int(whole) % 2
    return int(whole) + (rest > Fraction(1, 2))


def bits(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize(
    ("inputs_length", "tokens_length", "targets_length"),
    [  # T5X's own values at noise density 0.15 and mean span 3
        (32, 34, 8),
        (64, 70, 14),
        (128, 141, 29),
        (256, 284, 58),
        (512, 568, 114),
        (1024, 1137, 229),
    ],
)
def test_lengths_are_t5s(inputs_length: int, tokens_length: int, targets_length: int) -> None:
    assert span_corruption_lengths(inputs_length, 0.15, 3.0) == (tokens_length, targets_length)


def test_at_half_noise_both_lengths_lose_one_where_targets_would_be_longer() -> None:
    # 16 tokens: 8 noise tokens in 3 spans: inputs 16-8+3+1 = 12, targets 8+3+1 = 12.
    assert span_corruption_lengths(12, 0.5, 3.0) == (16, 12)
    # 15 tokens: 7.5 rounds to 8 noise tokens in 3 spans: inputs 15-8+3+1 = 11, targets 12 > 11.
    assert span_corruption_lengths(11, 0.5, 3.0) == (14, 11)


@pytest.mark.parametrize("inputs_length", [1, 2, 5, 9])
def test_too_small_inputs_are_refused(inputs_length: int) -> None:
    with pytest.raises(
        UserError, match=f"inputs length {inputs_length} is too small for span corr"
    ):
        span_corruption_lengths(inputs_length)


def test_ten_inputs_are_enough() -> None:
    # 10 tokens: 1.5 rounds to 2 noise tokens, 0.67 to one span: inputs 10-2+1+1, targets 2+1+1.
    assert span_corruption_lengths(10) == (10, 4)


@given(inputs_length=st.integers(10, 1200))
def test_one_more_token_would_not_fit_the_inputs(inputs_length: int) -> None:
    def sizes(num_tokens: int) -> tuple[int, int]:
        num_noise = half_to_even(num_tokens * Fraction(15, 100))
        num_spans = half_to_even(Fraction(num_noise, 3))
        return num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1

    tokens_length, targets_length = span_corruption_lengths(inputs_length)
    assert sizes(tokens_length)[0] <= inputs_length < sizes(tokens_length + 1)[0]
    assert sizes(tokens_length)[1] == targets_length


@given(length=st.integers(2, 1200), seed=st.integers(0, 2**32))
def test_mask_has_the_stated_noise_in_the_stated_spans(length: int, seed: int) -> None:
    mask = noise_mask(length, SpanCorruption(), bits(length, seed))
    num_noise = min(max(half_to_even(length * Fraction(15, 100)), 1), length - 1)
    num_spans = max(half_to_even(Fraction(num_noise, 3)), 1)
    runs = [(noise, len(list(run))) for noise, run in itertools.groupby(mask.tolist())]
    assert len(mask) == length
    assert mask.sum() == num_noise
    assert [noise for noise, _ in runs] == [False, True] * num_spans


@given(
    length=st.integers(2, 1200),
    seed=st.integers(0, 2**32),
    density=st.sampled_from([0.15, 0.3, 0.5]),
    span=st.sampled_from([2.0, 3.0, 8.0, 32.0]),
)
def test_inputs_and_targets_restore_the_segment(
    length: int, seed: int, density: float, span: float
) -> None:
    tokens = np.arange(3, 3 + length)
    inputs, targets = corrupt(tokens, SpanCorruption(density, span), VOCAB_SIZE, bits(length, seed))
    assert restore([*inputs, EOS], [*targets, EOS], VOCAB_SIZE) == tokens.tolist()
    assert targets[0] == VOCAB_SIZE - 1
    assert inputs[-1] >= VOCAB_SIZE - 600  # the last span is noise, and no sentinel closes it


@given(length=st.integers(10, 1200), seed=st.integers(0, 2**32))
def test_no_segment_up_to_the_tokens_length_outgrows_the_features(length: int, seed: int) -> None:
    tokens_length, targets_length = span_corruption_lengths(length)
    for num_tokens in {tokens_length, tokens_length - 1, tokens_length // 2, 2, 1}:
        inputs, targets = corrupt(
            np.full(num_tokens, 7), SpanCorruption(), VOCAB_SIZE, bits(num_tokens, seed)
        )
        assert len(inputs) + 1 <= length
        assert len(targets) + 1 <= targets_length


def test_a_single_token_stays() -> None:
    inputs, targets = corrupt(np.array([42]), SpanCorruption(), VOCAB_SIZE, bits(1, 0))
    assert inputs.tolist() == [42]
    assert targets.tolist() == [VOCAB_SIZE - 1]


def test_spans_become_descending_sentinels() -> None:
    tokens = np.array([10, 11, 12, 13, 14, 15, 16])
    mask = np.array([False, True, True, False, False, True, True])
    assert replace_spans(tokens, mask, 100).tolist() == [10, 99, 13, 14, 98]
    assert replace_spans(tokens, ~mask, 100).tolist() == [99, 11, 12, 98, 15, 16]


def test_all_segmentations_are_equally_likely() -> None:
    # 14 tokens at density 0.5, mean span 7/3: 7 noise tokens in 3 spans, as are the 7 that stay:
    # each side is one of the 15 ways to choose 2 of 6 gaps.
    config = SpanCorruption(0.5, 7 / 3)
    kept, noise, both = (Counter[tuple[int, ...]]() for _ in range(3))
    num_draws = 6000
    for seed in range(num_draws):
        mask = noise_mask(14, config, bits(14, seed))
        runs = [len(list(run)) for _, run in itertools.groupby(mask.tolist())]
        kept[tuple(runs[0::2])] += 1
        noise[tuple(runs[1::2])] += 1
        both[tuple(runs)] += 1
    for counts in (kept, noise):
        assert len(counts) == 15
        chi_square = sum((n - num_draws / 15) ** 2 / (num_draws / 15) for n in counts.values())
        assert chi_square < 36.1  # 14 degrees of freedom, p = 0.001
    assert len(both) == 225  # the two sides are drawn independently
