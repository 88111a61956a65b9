"""Greedy decoding and beam search against plain Python; what may not change a result."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from typing import Any

import jax
import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.inference.decoding import beam_search as beam
from mtf.inference.decoding import sample, step
from mtf.inference.decoding.generate import Generated, generate
from mtf.inference.decoding.settings import DecodingConfig
from mtf.models import t5
from mtf.models.stacking import stack_layers
from mtf.models.types import Params
from tests.conftest import with_devices
from tests.decoding import reference
from tests.models.test_t5 import SMALL
from tests.small import python

LENGTH = 8


@functools.cache
def params() -> Params:
    """Sharp, or all tokens would be about equally probable and hypotheses would seldom end."""
    found = t5.init_params(SMALL, jax.random.PRNGKey(5))
    found["decoder"]["logits_dense"]["kernel"] *= 2
    return found


def prompts(rows: int = 4, length: int = 9) -> np.ndarray:
    inputs = np.random.default_rng(0).integers(2, SMALL.vocab_size, (rows, length))
    for row in range(rows):
        inputs[row, length - 2 * row :] = 0 if row else inputs[row, length:]
    return inputs.astype(np.int32)


def assert_equal(ours: Generated, row: int, expected: list[tuple[float, list[int]]]) -> None:
    for place, (score, tokens) in enumerate(expected):
        padded = tokens + [0] * (LENGTH - len(tokens))
        assert np.asarray(ours.tokens)[row, place].tolist() == padded
        np.testing.assert_allclose(ours.scores[row, place], score, rtol=1e-5)


@functools.cache
def log_probs_of_rows() -> list[reference.LogProbs]:
    return [reference.log_probs_of(SMALL, params(), row, LENGTH) for row in prompts()]


@functools.cache
def eos() -> int:
    """A token that greedy decoding meets at different steps, to stand for EOS."""
    rows = [reference.greedy(row, LENGTH, -1)[0] for row in log_probs_of_rows()]
    first = {t: {r.index(t) for r in rows if t in r} for t in itertools.chain(*rows) if t}
    return max(first, key=lambda t: (len(first[t]), -t))


@pytest.mark.parametrize("stacked", [False, True])
def test_greedy(stacked: bool) -> None:
    decoding = DecodingConfig(max_length=LENGTH)
    weights = stack_layers(params()) if stacked else params()
    ours = generate(SMALL, weights, prompts(), decoding, eos_id=eos())
    lengths = set()
    for row, log_probs in enumerate(log_probs_of_rows()):
        tokens, score = reference.greedy(log_probs, LENGTH, eos())
        lengths.add(len(tokens))
        assert_equal(ours, row, [(score, tokens)])
    assert len(lengths) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("num_beams", "alpha"), [(1, 0.6), (4, 0.6), (5, 2.0)])
def test_beam_with_the_brevity_penalty(num_beams: int, alpha: float) -> None:
    settings = {"num_beams": num_beams, "num_return": num_beams, "length_penalty": alpha}
    decoding = DecodingConfig(method="beam", max_length=LENGTH, **settings)  # type: ignore[arg-type]
    ours = generate(SMALL, params(), prompts(), decoding, eos_id=eos())
    finished = 0
    for row, log_probs in enumerate(log_probs_of_rows()):
        expected = reference.beam_t5x(log_probs, LENGTH, eos(), num_beams, alpha)
        assert_equal(ours, row, expected)
        finished += sum(eos() in tokens for _, tokens in expected)
    assert finished >= num_beams


def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_sequences() -> None:
    tiny = dataclasses.replace(SMALL, vocab_size=6, num_decoder_layers=1)
    weights = t5.init_params(tiny, jax.random.PRNGKey(1))
    inputs = np.asarray([[3, 4, 2, 1], [5, 1, 0, 0]], np.int32)
    # Two steps: the five tokens that are not EOS go on, more than a beam of three; all start
    # from three live ones, so only sequences from the three best first tokens count.
    decoding = DecodingConfig(method="beam", max_length=2, num_beams=3, length_penalty=0.8)
    ours = generate(tiny, weights, inputs, decoding)
    for row in range(2):
        log_probs = reference.log_probs_of(tiny, weights, inputs[row], 2)
        first = log_probs(())
        kept = sorted((t for t in range(6) if t != 1), key=lambda t: -first[t])[:3]
        ended = [(float(first[1]), [1])]
        ended += [(float(first[t] + log_probs((t,))[1]) / (7 / 6) ** 0.8, [t, 1]) for t in kept]
        score, tokens = max(ended)
        assert np.asarray(ours.tokens)[row, 0].tolist() == [*tokens, 0][:2]
        np.testing.assert_allclose(ours.scores[row, 0], score, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "decoding",
    [
        DecodingConfig(max_length=LENGTH),
        DecodingConfig(method="beam", max_length=LENGTH, num_return=2),
        DecodingConfig(method="beam", max_length=LENGTH, length_penalty_form="hf", num_return=2),
        DecodingConfig(method="sample", max_length=LENGTH, num_return=3),
    ],
    ids=lambda decoding: f"{decoding.method}-{decoding.length_penalty_form}",
)
def test_other_rows_change_nothing(decoding: DecodingConfig) -> None:
    inputs = prompts()
    seeds = np.asarray([7, 8, 9, 10], np.uint32)
    whole = generate(SMALL, params(), inputs, decoding, eos_id=eos(), seeds=seeds)
    alone = generate(SMALL, params(), inputs[[2]], decoding, eos_id=eos(), seeds=seeds[[2]])
    np.testing.assert_array_equal(alone.tokens, np.asarray(whole.tokens)[[2]])
    np.testing.assert_allclose(alone.scores, np.asarray(whole.scores)[[2]], rtol=1e-5)
    # In another order and twice, longer padding, and rows that are padding alone.
    rows = [3, 1, 2, 0, 0]
    padded = np.pad(inputs[rows], ((0, 2), (0, 7)))
    others = np.pad(seeds[rows], (0, 2))
    more = generate(SMALL, params(), padded, decoding, eos_id=eos(), seeds=others)
    np.testing.assert_array_equal(np.asarray(more.tokens)[:5], np.asarray(whole.tokens)[rows])
    np.testing.assert_allclose(
        np.asarray(more.scores)[:5], np.asarray(whole.scores)[rows], rtol=1e-5
    )
    assert not np.asarray(more.tokens)[5:].any()
    assert not np.asarray(more.scores)[5:].any()


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_stops_when_all_rows_have_ended(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the steps that are run."""
    steps: list[int] = []
    decode_step = step.decode_step

    def counted(*args: Any) -> Any:
        jax.debug.callback(lambda i: steps.append(int(i)), args[4])
        return decode_step(*args)

    monkeypatch.setattr(sample if method == "greedy" else beam, "decode_step", counted)
    # A length of its own, so that what is compiled counts and is not used by other tests.
    decoding = DecodingConfig(method=method, max_length=90, num_beams=2)  # type: ignore[arg-type]
    ours = generate(SMALL, params(), prompts(), decoding, eos_id=eos())
    jax.effects_barrier()
    length = int((np.asarray(ours.tokens) != 0).sum(axis=-1).max())
    if method == "greedy":
        assert sorted(steps) == list(range(length))
    assert length <= len(steps) < 90


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_bfloat16(method: str) -> None:
    config = dataclasses.replace(SMALL, dtype="bfloat16")
    decoding = DecodingConfig(method=method, max_length=LENGTH)  # type: ignore[arg-type]
    ours = generate(config, params(), prompts(), decoding, eos_id=eos())
    exact = generate(SMALL, params(), prompts(), decoding, eos_id=eos())
    assert np.isfinite(np.asarray(ours.scores)).all()
    if method == "greedy":  # The first tokens stand well apart.
        first = np.asarray(ours.tokens)[:, 0, 0] == np.asarray(exact.tokens)[:, 0, 0]
        assert first.mean() >= 0.75


def test_best_first_and_as_many_as_asked() -> None:
    for decoding in (
        DecodingConfig(method="sample", max_length=LENGTH, num_return=6),
        DecodingConfig(method="beam", max_length=LENGTH, num_return=3, length_penalty_form="hf"),
    ):
        ours = generate(SMALL, params(), prompts(), decoding, eos_id=eos())
        assert ours.tokens.shape == (4, decoding.num_return, LENGTH)
        assert ours.tokens.dtype == np.int32
        scores = np.asarray(ours.scores)
        assert (np.diff(scores, axis=1) <= 0).all()
        for row in np.asarray(ours.tokens):
            num_different = len({tuple(tokens) for tokens in row.tolist()})
            # Samples may coincide, hypotheses never do.
            assert num_different > 1 if decoding.method == "sample" else num_different == 3


@pytest.mark.slow
def test_a_mesh_decodes_the_tokens_of_one_device() -> None:
    eight = {"XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.decoding.mesh_tokens", **eight)
    alone, on_mesh = json.loads(done.stdout)
    assert len({str(rows) for rows in alone["greedy"]}) > 1
    for one, other in zip(alone.pop("scores"), on_mesh.pop("scores"), strict=True):
        assert other == pytest.approx(one, abs=1e-4)
    assert on_mesh == alone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "bream"}, ["'greedy', 'sample' or 'beam'", "'bream'"]),
        ({"max_length": 0}, ["max_length", "at least 1"]),
        ({"method": "sample", "temperature": -0.1}, ["temperature", "-0.1"]),
        ({"method": "sample", "top_p": 0.0}, ["top_p", "greater than 0 and at most 1"]),
        (
            {"method": "sample", "top_k": 5, "top_p": 0.9},
            ["top_k (5)", "top_p (0.9)", "both be set"],
        ),
        ({"top_k": 5}, ["top_k", "method='sample'"]),
        ({"method": "beam", "temperature": 0.7}, ["temperature", "method='sample'"]),
        ({"num_return": 2}, ["num_return is 2", "'beam' or 'sample'"]),
        ({"method": "beam", "num_return": 5}, ["num_return (5)", "num_beams (4)"]),
        ({"method": "beam", "length_penalty_form": "gnmt"}, ["'t5x' or 'hf'", "'gnmt'"]),
        ({"method": "beam", "length_penalty": -1.0}, ["length_penalty", "-1.0"]),
        ({"method": "beam", "early_stopping": True}, ["early_stopping", "'hf'"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"max_length": "8"}, ["max_length must be a whole number", "'8'"]),
        ({"method": "sample", "temperature": "hot"}, ["temperature must be a number", "'hot'"]),
    ],
)
def test_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        DecodingConfig(**settings)
    for word in words:
        assert word in str(error.value)


def test_taken() -> None:
    DecodingConfig(method="sample", temperature=0.0, num_return=8)
    DecodingConfig(method="beam", num_return=4, length_penalty=-1.0, length_penalty_form="hf")
