"""The compiled training step, also with a custom loss function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.models.settings import ModelConfig, RematPolicy
from mtf.partitioning import memory
from mtf.training.metrics import summarize
from mtf.training.settings import AdafactorConfig, ScheduleConfig
from mtf.training.trainer import Trainer
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer


def programs(trainers: Iterable[Trainer]) -> set[str]:
    """The different training steps that XLA would compile."""
    batch: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_batch())
    return {trainer.lower(trainer.state_shapes, batch).as_text() for trainer in trainers}


def test_runs_with_other_seeds_and_schedules_compile_the_same_program() -> None:
    """So does a run that goes on, which makes no initial parameters before its first step."""
    model = ModelConfig(dataclasses.replace(NETWORK, dropout_rate=0.1))
    trainers = [
        dataclasses.replace(make_trainer(), model=model, optimizer=optimizer, random_seed=seed)
        for seed, optimizer in enumerate(
            AdafactorConfig(schedule)
            for schedule in (
                ScheduleConfig("constant", 1e-3),
                ScheduleConfig("constant * linear_warmup", 1e-4, 7, step_offset=5),
                lambda step: 0.1 / (step + 1),
            )
        )
    ]
    state = trainers[0].init_state()
    assert len(programs(trainers)) == 1
    without_dropout = dataclasses.replace(trainers[0], model=ModelConfig(NETWORK))
    assert len(programs([trainers[0], without_dropout])) == 2
    # A run can make initial parameters after its step was compiled.
    resumed = dataclasses.replace(trainers[0])
    programs([resumed])
    jax.tree.map(np.testing.assert_array_equal, resumed.init_state(), state)


def test_no_more_is_recomputed_than_memory_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(policy: RematPolicy) -> str:
        model = ModelConfig(dataclasses.replace(NETWORK, remat_policy=policy))
        (text,) = programs([dataclasses.replace(make_trainer(), model=model)])
        return text

    expected: list[RematPolicy] = ["none", "minimal", "full"]
    name_of = {program(policy): policy for policy in expected}
    chosen = []
    for available in (10**8, 10**5, 0):
        monkeypatch.setattr(memory, "device_bytes", lambda devices, size=available: size)
        chosen.append(name_of[program("auto")])
    assert chosen[0] == "none"
    assert chosen[-1] == "full"
    assert chosen == sorted(chosen, key=expected.index)


def cross_entropy(logits: Any, batch: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
    """Equals mtf's own loss without z-loss."""
    one_hot = jax.nn.one_hot(batch["decoder_target_tokens"], logits.shape[-1])
    each = -jnp.sum(jax.nn.log_softmax(logits) * one_hot, axis=-1)
    return jnp.sum(each * weights), {"weights": jnp.sum(weights)}


def trained(trainer: Trainer) -> tuple[Any, list[dict[str, Any]]]:
    state, metrics = trainer.init_state(), []
    for _ in range(2):
        state, measured = trainer.train_step(state, make_batch())
        metrics.append(measured)
    return jax.device_get(state.params), metrics


@pytest.mark.slow
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_a_cross_entropy_trains_as_our_own(num_microbatches: int) -> None:
    """With a normalizing factor, and in parts."""
    factor = "NUM_REAL_TARGET_TOKENS"
    own = ModelConfig(NETWORK, z_loss=0.0, loss_normalizing_factor=factor)
    theirs = dataclasses.replace(own, loss_fn=cross_entropy)
    trainer = make_trainer(num_microbatches=num_microbatches)
    a, expected = trained(dataclasses.replace(make_trainer(), model=own))
    b, found = trained(dataclasses.replace(trainer, model=theirs))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-5), a, b)
    ours, summary = summarize(expected), summarize(found)
    for name in ("loss", "loss_per_target_token", "accuracy", "weight_gradient_norm"):
        assert summary[name] == pytest.approx(ours[name], rel=1e-5)
    assert summary["loss_fn/weights"] == pytest.approx(1.0)  # normalized by their sum
    assert "loss_fn/weights" not in ours
