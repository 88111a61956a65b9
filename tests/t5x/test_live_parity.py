"""T5X itself and mtf, side by side. Where T5X is not installed, tests/golden compares."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.settings import SaveCheckpointConfig
from tests.golden import cases, comparing, engine, recorded, t5x_engine
from tests.t5x import T5X_MISSING

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed")

STEP = cases.EXCHANGE_STEP
CASE = cases.CASES["rsqrt"]
BATCHES = cases.batches(CASE.packed)
FAST = ("packed_per_sequence",)
CASES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in cases.CASES
]


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps(name: str) -> None:
    case = cases.CASES[name]
    batches = cases.batches(case.packed)
    t5x = t5x_engine.Engine(case)
    trainer = t5x.trainer(t5x.start())
    theirs = list(t5x.losses(trainer, batches))
    mtf = engine.Engine(case)
    state, ours = mtf.train(mtf.start(), batches)
    comparing.assert_losses(case, ours, theirs)
    comparing.assert_metrics(case, mtf.evaluate(state), t5x.evaluate(trainer))
    found, expected = engine.flat(state), t5x.flat(trainer.train_state)
    comparing.assert_state(case, recorded.summary(found), recorded.summary(expected))
    # What is recorded is still what T5X does.
    number = str(jax.device_count())
    np.testing.assert_allclose(theirs, recorded.read(name)["losses"][number], rtol=case.tolerance)


@pytest.mark.parametrize(
    ("factor", "packed"),
    [
        ("AVERAGE_PER_SEQUENCE", False),
        pytest.param("AVERAGE_PER_SEQUENCE", True, marks=pytest.mark.slow),
        pytest.param("NUM_REAL_TARGET_TOKENS", False, marks=pytest.mark.slow),
    ],
)
def test_losses_do_not_depend_on_the_number_of_microbatches(factor: str, packed: bool) -> None:
    # With this epsilon, the updates depend on the scale of the gradients.
    case = cases.Case(
        model={"loss_normalizing_factor": factor}, optimizer={"epsilon1": 1e-4}, packed=packed
    )
    batches = cases.batches(packed)[:20]
    whole = t5x_engine.Engine(case)
    expected = list(whole.losses(whole.trainer(whole.start()), batches))
    for number in (1, 2, 4):
        split = dataclasses.replace(case, num_microbatches=number)
        mtf = engine.Engine(split)
        _, ours = mtf.train(mtf.start(), batches)
        t5x = t5x_engine.Engine(split, trainer="mtf.t5x.microbatches.Trainer")
        trainer = t5x.trainer(t5x.start())
        comparing.assert_losses(case, ours, expected)
        comparing.assert_losses(case, ours, list(t5x.losses(trainer, batches)))


@pytest.fixture(scope="module")
def t5x() -> t5x_engine.Engine:
    return t5x_engine.Engine(CASE)


@pytest.mark.parametrize(
    "scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["unrolled", "scanned"]
)
def test_t5x_continues_our_checkpoint(
    scan_layers: bool, t5x: t5x_engine.Engine, tmp_path: Path
) -> None:
    mtf = engine.Engine(CASE, scan_layers=scan_layers)
    state, _ = mtf.train(mtf.start(), BATCHES[:STEP])
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig())
    manager.save(STEP, state.state_dict(), {})
    manager.close()

    path = tmp_path / "checkpoints" / f"checkpoint_{STEP}"
    trainer = t5x.trainer(t5x.restore(path, "orbax"))
    assert int(trainer.train_state.step) == STEP
    theirs = list(t5x.losses(trainer, BATCHES[STEP:]))
    _, ours = mtf.train(state, BATCHES[STEP:])
    comparing.assert_losses(CASE, ours, theirs)
