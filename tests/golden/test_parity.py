"""Training, evaluation, scores and decoding give T5X's recorded figures."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from mtf.inference.decoding.generate import generate
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Predictor
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from tests.golden import cases, comparing, engine, recorded

# The others compile for minutes; `pytest -m slow` runs them. test_checkpoints.py runs "rsqrt".
FAST = (
    *("constant", "label_smoothing", "packed_per_sequence", "bfloat16", "beta1", "t5_1_0"),
    "two_microbatches_by_all_tokens",
)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in cases.CASES if name not in FAST]


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_fifty_steps(name: str) -> None:
    case, expected = cases.CASES[name], recorded.read(name)
    ours = engine.Engine(case, scan_layers=name == "packed_per_sequence")
    state, losses = ours.train(ours.start(), cases.batches(case.packed))
    comparing.assert_losses(case, losses, expected["losses"]["1"])
    comparing.assert_metrics(case, ours.evaluate(state), expected["eval"])
    comparing.assert_state(case, recorded.summary(engine.flat(state)), expected["state"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["normalized_by_real_tokens", "normalized_by_all_tokens", "normalized_per_sequence"]
)
def test_microbatches_have_the_losses_of_the_whole_batch(name: str) -> None:
    case = dataclasses.replace(cases.CASES[name], num_microbatches=4)
    ours = engine.Engine(case)
    _, losses = ours.train(ours.start(), cases.batches(case.packed))
    comparing.assert_losses(case, losses, recorded.read(name)["losses"]["1"])


def test_every_case_is_recorded() -> None:
    files = {path.stem for path in recorded.RECORDED.glob("*.json")}
    assert files == {*cases.CASES, "decoding", "versions"}
    for name in cases.CASES:
        losses = recorded.read(name)["losses"]
        assert {n: len(each) for n, each in losses.items()} == {"1": 50, "4": 50}


def test_every_case_has_its_own_losses() -> None:
    # These are the same run in another way, which must not change the losses.
    names = cases.CASES.keys() - {"bfloat16", "two_microbatches", "microbatches_of_one_row"}
    for number in recorded.NUM_DEVICES:
        losses = {name: np.array(recorded.read(name)["losses"][str(number)]) for name in names}
        for one, other in itertools.combinations(losses, 2):
            difference = np.max(np.abs(losses[one] / losses[other] - 1.0))
            assert difference > 100 * cases.CASES[one].tolerance, (one, other)


@pytest.fixture(scope="module", params=list(cases.NETWORKS))
def network(request: pytest.FixtureRequest) -> str:
    return request.param


def test_scores(network: str) -> None:
    (batch, _), config = cases.eval_batches(packed=False), T5Config(**cases.NETWORKS[network])
    params = engine.params(config, cases.start_to_decode)
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    predictor = Predictor(ModelConfig(config), params, None, partitioner, batch_size=8)
    examples = [
        ([int(x) for x in inputs if x], [[int(x) for x in targets if x]])
        for inputs, targets in zip(
            batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
        )
    ]
    found = [scores.log_likelihoods[0] for scores in predictor.log_likelihoods(examples)]
    expected = recorded.read("decoding")[network]["scores"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_decoding(network: str, method: str) -> None:
    expected = recorded.read("decoding")[network][method]
    theirs = np.array(expected["tokens"])
    num_return, length = theirs.shape[1:]
    config = T5Config(**cases.NETWORKS[network], scan_layers=False)
    ours = generate(
        config,
        engine.params(config, cases.start_to_decode),
        cases.eval_batches(packed=False)[0]["encoder_input_tokens"],
        DecodingConfig(method, length, num_return=num_return),  # type: ignore[arg-type]
    )
    comparing.assert_decoded(ours, theirs, np.array(expected["scores"]))
    # They differ in length and have many tokens.
    assert len(np.unique(np.sum(theirs > 0, axis=-1))) > 2
    assert len(np.unique(theirs)) > 20


FAST_ON_FOUR = ("rsqrt", "packed_per_sequence")
SLOW_ON_FOUR = tuple(name for name in cases.CASES if name not in FAST_ON_FOUR)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FAST_ON_FOUR, id="some"),
        pytest.param(SLOW_ON_FOUR, id="others", marks=pytest.mark.slow),
    ],
)
def test_on_four_devices(names: tuple[str, ...]) -> None:
    found = engine.losses(4, names)
    assert found.keys() == {*names}
    for name, losses in found.items():
        comparing.assert_losses(cases.CASES[name], losses, recorded.read(name)["losses"]["4"])
