"""Scores equal those of each choice alone, for any batch size."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.stacking import stack_layers
from mtf.models.types import Params
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from tests.inference import models

NETWORK = T5Config(
    vocab_size=256,
    emb_dim=32,
    num_heads=2,
    head_dim=16,
    num_encoder_layers=2,
    num_decoder_layers=2,
    mlp_dim=64,
    dtype="float32",
)
EOS = 1
Examples = list[tuple[list[int], list[list[int]]]]


@functools.cache
def params() -> Params:
    """Returns stacked parameters, which compile faster."""
    return stack_layers(t5.init_params(NETWORK, jax.random.PRNGKey(0)))


def examples(num: int = 18) -> Examples:
    """Returns examples with one to five choices of different lengths."""
    rng = np.random.default_rng(0)

    def tokens(longest: int) -> list[int]:
        return rng.integers(2, 256, rng.integers(1, longest)).tolist()

    return [(tokens(33), [[*tokens(6), EOS] for _ in range(1 + i % 5)]) for i in range(num)]


def predictor(batch_size: int = 8, **limits: int) -> Predictor:
    partitioner = PjitPartitioner.create(PartitionerConfig())
    model = ModelConfig(NETWORK)
    return Predictor(model, params(), None, partitioner, batch_size=batch_size, **limits)


def score(data: Examples, batch_size: int = 8) -> list[list[float]]:
    found = predictor(batch_size).log_likelihoods(data)
    return [each.log_likelihoods.tolist() for each in found]


@functools.cache
def expected() -> list[list[float]]:
    """Scores each choice alone, in a separate pass through the network."""

    def one(inputs: list[int], target: list[int]) -> float:
        table = models.log_probabilities(NETWORK, params(), inputs, target)
        return float(sum(table[i, token] for i, token in enumerate(target)))

    return [[one(inputs, target) for target in targets] for inputs, targets in examples()]


@pytest.mark.parametrize("batch_size", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_scores_are_those_of_each_choice_alone(batch_size: int) -> None:
    for found, wanted in zip(score(examples(), batch_size=batch_size), expected(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_equal_choices_have_the_same_score_to_the_bit() -> None:
    choice = [9, 8, 7, EOS]
    ((first, other, second),) = score([([5, 6, 7], [choice, [4, EOS], list(choice)])])
    assert first == second != other


@pytest.mark.slow
def test_choices_too_many_for_a_row_are_scored_as_any() -> None:
    rng = np.random.default_rng(1)
    many = [[*rng.integers(2, 256, 150).tolist(), EOS] for _ in range(8)]
    (together,) = score([([5, 6, 7], many)])
    alone = [score([([5, 6, 7], [choice])])[0][0] for choice in many[:1] + many[-1:]]
    np.testing.assert_allclose([together[0], together[-1]], alone, rtol=1e-5)


def test_long_inputs_are_cut_and_counted() -> None:
    model = predictor(max_inputs_length=20, max_targets_length=3)
    long, short = list(range(2, 40)), list(range(2, 22))
    data: Examples = [(long, [[3, EOS]]), (short, [[3, EOS]]), (short, [[3, 4, 5, EOS]])]
    first, second, third = model.log_likelihoods(data)
    assert (first.truncated, second.truncated, third.truncated) == (True, False, True)
    np.testing.assert_allclose(first.log_likelihoods, second.log_likelihoods, atol=1e-5)
    assert third.num_tokens.tolist() == [3]


@pytest.mark.slow
def test_generation_does_not_depend_on_the_batch() -> None:
    inputs = [inputs for inputs, _ in examples(7)]
    decoding = DecodingConfig(method="sample", max_length=6, seed=3)
    found = [list(predictor(batch_size=size).generate(inputs, decoding)) for size in (2, 8)]
    assert [g[0].ids for g in found[0]] == [g[0].ids for g in found[1]]
    assert len({tuple(g[0].ids) for g in found[0]}) > 1
    assert all(EOS not in g[0].ids for g in found[0])
