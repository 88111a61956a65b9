"""Scores equal those of each choice alone, for any batch size."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import NotFiniteError, Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.stacking import stack_layers
from mtf.models.types import Params
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig

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
MODEL = ModelConfig(NETWORK)
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


def predictor(batch_size: int = 8, weights: Params | None = None, **settings: Any) -> Predictor:
    partitioner = PjitPartitioner.create(PartitionerConfig())
    weights = params() if weights is None else weights
    return Predictor(MODEL, weights, None, partitioner, batch_size=batch_size, **settings)


def score(data: Examples, **settings: Any) -> list[list[float]]:
    return [s.log_likelihoods.tolist() for s in predictor(**settings).log_likelihoods(data)]


@functools.cache
def expected() -> list[list[float]]:
    """Scores each choice alone, in a separate pass through the network."""
    weights = params()

    @jax.jit
    def logits(inputs: Any, previous: Any, targets: Any) -> Any:
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": previous,
            "decoder_target_tokens": targets,
        }
        return t5.apply(NETWORK, weights, batch)

    def padded(ids: list[int], length: int) -> Any:
        return jnp.array([ids + [0] * (length - len(ids))])

    def one(inputs: list[int], target: list[int]) -> float:
        rows = logits(padded(inputs, 32), padded([0, *target[:-1]], 10), padded(target, 10))
        rows = np.asarray(rows, np.float64)[0, : len(target)]
        z = np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)) + rows.max(-1)
        return float(sum(rows[i, token] - z[i] for i, token in enumerate(target)))

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
    assert model.num_truncated == 2
    assert (first.truncated, second.truncated, third.truncated) == (True, False, True)
    np.testing.assert_allclose(first.log_likelihoods, second.log_likelihoods, atol=1e-5)
    assert third.num_tokens.tolist() == [3]


def test_inputs_without_tokens_are_named() -> None:
    with pytest.raises(UserError, match=r"^inputs\[1\] has no tokens; expected at least one$"):
        list(predictor().log_likelihoods([([5], [[3, EOS]]), ([], [[3, EOS]])]))


def test_a_score_that_is_no_number_stops_with_its_example() -> None:
    broken = jax.tree.map(lambda x: x, params())
    table = broken["token_embedder"]["embedding"].at[77].set(jnp.nan)
    broken["token_embedder"] = {"embedding": table}
    model = predictor(4, broken)
    data: Examples = [([5, 6], [[3, EOS]]), ([7, 8], [[3, EOS], [77, 4, EOS]])]
    with pytest.raises(NotFiniteError, match=r"log-likelihood of inputs\[1\] is nan") as caught:
        list(model.log_likelihoods(data))
    assert caught.value.example == 1


@pytest.mark.slow
def test_generation_does_not_depend_on_the_batch() -> None:
    inputs = [inputs for inputs, _ in examples(7)]
    decoding = DecodingConfig(method="sample", max_length=6, seed=3)
    found = [list(predictor(batch_size=size).generate(inputs, decoding)) for size in (2, 8)]
    assert [g[0].ids for g in found[0]] == [g[0].ids for g in found[1]]
    assert len({tuple(g[0].ids) for g in found[0]}) > 1
    assert all(EOS not in g[0].ids for g in found[0])
