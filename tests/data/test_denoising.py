"""The objectives against their rules, stated a second time."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.data.tasks.denoising import noise_mask
from mtf.data.tasks.objectives import (
    BertStyle,
    IidDenoising,
    Objective,
    PrefixLM,
    SegmentLengths,
    SpanCorruption,
    span_corruption_lengths,
)
from tests.data.helpers import EOS, restore

VOCAB_SIZE = 32100


def half_to_even(value: Fraction) -> int:
    whole, rest = divmod(value, 1)
    if rest == Fraction(1, 2):
        return int(whole) + int(whole) % 2
    return int(whole) + (rest > Fraction(1, 2))


def bits(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def lengths_of(
    objective: Objective, inputs: int, targets: int, inputs_add_eos: bool = True
) -> SegmentLengths:
    return objective.segment_lengths({"inputs": inputs, "targets": targets}, inputs_add_eos)


def apply(
    objective: Objective, tokens: np.ndarray, lengths: SegmentLengths, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    random = bits(objective.bits_per_token * len(tokens), seed)
    return objective.apply(tokens, lengths, VOCAB_SIZE, random)


# Span corruption.


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


@given(inputs_length=st.integers(10, 1200))
def test_one_more_token_would_not_fit_the_inputs(inputs_length: int) -> None:
    def sizes(num_tokens: int) -> tuple[int, int]:
        num_noise = half_to_even(num_tokens * Fraction(15, 100))
        num_spans = half_to_even(Fraction(num_noise, 3))
        return num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1

    tokens_length, targets_length = span_corruption_lengths(inputs_length)
    assert sizes(tokens_length)[0] <= inputs_length < sizes(tokens_length + 1)[0]
    assert sizes(tokens_length)[1] == targets_length


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
    objective = SpanCorruption(noise_density=density, mean_noise_span_length=span)
    inputs, targets = apply(objective, tokens, lengths_of(objective, 2400, 2400), seed)
    assert restore([*inputs, EOS], [*targets, EOS], VOCAB_SIZE) == tokens.tolist()
    assert targets[0] == VOCAB_SIZE - 1
    assert inputs[-1] >= VOCAB_SIZE - 600  # the last span is noise, and no sentinel closes it


@given(length=st.integers(10, 1200), seed=st.integers(0, 2**32))
def test_no_segment_up_to_the_tokens_length_outgrows_the_features(length: int, seed: int) -> None:
    tokens_length, targets_length = span_corruption_lengths(length)
    for num_tokens in {tokens_length, tokens_length - 1, tokens_length // 2, 2, 1}:
        inputs, targets = apply(
            SpanCorruption(),
            np.full(num_tokens, 7),
            lengths_of(SpanCorruption(), length, targets_length),
            seed,
        )
        assert len(inputs) + 1 <= length
        assert len(targets) + 1 <= targets_length


def test_all_segmentations_are_equally_likely() -> None:
    # 7 of 14 tokens are noise, in 3 spans, as are the 7 that stay: each side is one of the 15 ways
    # to choose 2 of 6 gaps.
    kept, noise, both = (Counter[tuple[int, ...]]() for _ in range(3))
    num_draws = 6000
    for seed in range(num_draws):
        mask = noise_mask(14, 7, 3, bits(14, seed))
        runs = [len(list(run)) for _, run in itertools.groupby(mask.tolist())]
        kept[tuple(runs[0::2])] += 1
        noise[tuple(runs[1::2])] += 1
        both[tuple(runs)] += 1
    for counts in (kept, noise):
        assert len(counts) == 15
        chi_square = sum((n - num_draws / 15) ** 2 / (num_draws / 15) for n in counts.values())
        assert chi_square < 36.1  # 14 degrees of freedom, p = 0.001
    assert len(both) == 225  # the two sides are drawn independently


# I.i.d. denoising.


@given(
    length=st.integers(1, 600),
    inputs_length=st.integers(3, 600),
    seed=st.integers(0, 2**32),
    density=st.sampled_from([0.02, 0.15, 0.5, 0.9]),
    inputs_add_eos=st.booleans(),
)
def test_iid_noise_restores_the_segment_and_fits(
    length: int, inputs_length: int, seed: int, density: float, inputs_add_eos: bool
) -> None:
    objective = IidDenoising(noise_density=density)
    lengths = lengths_of(objective, inputs_length, 10_000, inputs_add_eos)
    assert lengths.num_tokens == inputs_length - inputs_add_eos
    tokens = np.arange(3, 3 + min(length, lengths.num_tokens))
    inputs, targets = apply(objective, tokens, lengths, seed)
    assert len(inputs) + inputs_add_eos <= inputs_length
    assert len(targets) + 1 <= lengths.targets_length
    sentinels = range(VOCAB_SIZE - lengths.num_sentinels, VOCAB_SIZE)
    for ids in (inputs, targets):
        found = [i for i in ids.tolist() if i > 1000]
        assert found == sorted(found, reverse=True)
        assert set(found) <= set(sentinels)
    # Both alternate between tokens and sentinels at the same places: together they are the text.
    merged = sorted(i for i in [*inputs.tolist(), *targets.tolist()] if i < 1000)
    assert merged == tokens.tolist()


def test_iid_noise_has_its_density_and_t5s_lengths_suffice() -> None:
    objective = IidDenoising()
    lengths = lengths_of(objective, 512, 512)
    # 511 tokens: 76.65 noise tokens and 65 to 66 sentinels on average.
    assert 143 < lengths.targets_length < 210
    assert 66 < lengths.num_sentinels < 100  # T5's vocabulary has 100
    num_noise, num_at_the_limit = [], 0
    for seed in range(3000):
        inputs, targets = apply(objective, np.full(511, 7), lengths, seed)
        num_noise.append((targets == 7).sum())
        num_at_the_limit += len(targets) + 1 == lengths.targets_length
        assert (inputs == 7).sum() + num_noise[-1] == 511
    assert abs(np.mean(num_noise) - 76.65) < 4 * np.sqrt(511 * 0.15 * 0.85 / 3000)
    assert num_at_the_limit <= 1


def test_noise_that_does_not_fit_stays_in_the_inputs() -> None:
    objective = IidDenoising(noise_density=0.5)
    tokens = np.arange(10, 18)
    lengths = SegmentLengths(num_tokens=8, targets_length=6, num_sentinels=8)
    for seed in range(200):
        inputs, targets = apply(objective, tokens, lengths, seed)
        assert len(targets) + 1 <= 6
        assert sorted([*inputs[inputs < 100], *targets[targets < 100]]) == tokens.tolist()
    few = SegmentLengths(num_tokens=8, targets_length=9, num_sentinels=2)
    for seed in range(200):
        for ids in apply(objective, tokens, few, seed):
            assert (ids > 100).sum() <= 2


# BERT's objective.


def test_bert_style_noise_is_nine_parts_mask_and_one_part_random_tokens() -> None:
    objective = BertStyle()
    lengths = lengths_of(objective, 512, 512)
    assert lengths == (511, 512, 1)
    masked = random = 0
    found = set()
    for seed in range(400):
        tokens = np.full(511, 7)
        inputs, _ = apply(objective, tokens, lengths, seed)
        masked += int((inputs == VOCAB_SIZE - 1).sum())
        changed = inputs[(inputs != 7) & (inputs != VOCAB_SIZE - 1)]
        random += len(changed)
        found |= set(changed.tolist())
    num_noise = 400 * 511 * 0.15
    assert abs(masked - 0.9 * num_noise) < 5 * np.sqrt(num_noise)
    assert abs(random - 0.1 * num_noise) < 5 * np.sqrt(0.1 * num_noise)
    assert min(found) >= 3 and max(found) < VOCAB_SIZE
    assert len(found) > 0.9 * random  # all over the vocabulary


# Prefix language modelling.


@given(
    length=st.integers(2, 600),
    inputs_length=st.integers(3, 600),
    targets_length=st.integers(2, 600),
    seed=st.integers(0, 2**32),
    inputs_add_eos=st.booleans(),
    truncate_targets=st.booleans(),
)
def test_a_prefix_and_the_rest_fit_and_are_the_segment(
    length: int,
    inputs_length: int,
    targets_length: int,
    seed: int,
    inputs_add_eos: bool,
    truncate_targets: bool,
) -> None:
    objective = PrefixLM(truncate_targets=truncate_targets)
    lengths = lengths_of(objective, inputs_length, targets_length, inputs_add_eos)
    tokens = np.arange(min(length, lengths.num_tokens))
    inputs, targets = apply(objective, tokens, lengths, seed)
    rest = tokens[len(inputs) :].tolist()
    assert inputs.tolist() == tokens[: len(inputs)].tolist()
    assert targets.tolist() == (rest[: targets_length - 1] if truncate_targets else rest)
    assert 1 <= len(inputs) <= inputs_length - inputs_add_eos
    assert 1 <= len(targets) <= targets_length - 1


@pytest.mark.parametrize(
    ("targets_length", "truncate_targets", "possible"),
    # T5's split points of 511 tokens are 1 to 510; with 255 targets or fewer, 256 to 510.
    [
        (512, True, range(1, 511)),
        (512, False, range(1, 511)),
        (256, True, range(1, 511)),
        (256, False, range(256, 511)),
    ],
)
def test_split_points_are_uniform(
    targets_length: int, truncate_targets: bool, possible: range
) -> None:
    objective = PrefixLM(truncate_targets=truncate_targets)
    lengths = lengths_of(objective, 512, targets_length)
    num_draws = 20 * len(possible)
    counts = Counter(
        len(apply(objective, np.zeros(511), lengths, seed)[0]) for seed in range(num_draws)
    )
    assert set(counts) <= set(possible)
    chi_square = sum((counts[split] - 20) ** 2 / 20 for split in possible)
    # Mean and variance of chi-square: its degrees of freedom and twice those.
    degrees = len(possible) - 1
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
