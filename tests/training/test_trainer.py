"""The compiled training step, also with a custom loss function."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.models.settings import ModelConfig
from mtf.training.metrics import summarize
from mtf.training.trainer import Trainer
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer


def keys(trainer: Trainer) -> list[str]:
    """The random keys that are constants of the training step."""
    batch: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_batch())
    program = trainer._jit_train_step.lower(trainer.state_shapes, batch).as_text()
    return re.findall(r"dense<\[(\d+, \d+)\]> : tensor<2xui32>", program)


def test_a_run_that_goes_on_compiles_what_a_new_one_does() -> None:
    """It makes no initial parameters before its first step."""
    model = ModelConfig(dataclasses.replace(NETWORK, dropout_rate=0.1))
    new, resumed = (dataclasses.replace(make_trainer(), model=model) for _ in range(2))
    state = new.init_state()
    assert keys(resumed) == keys(new) != []
    # It can make them afterwards.
    jax.tree.map(np.testing.assert_array_equal, resumed.init_state(), state)


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
