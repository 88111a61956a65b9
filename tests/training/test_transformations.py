"""Optimizers of optax in the training step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mtf.base.errors import UserError
from mtf.models.settings import ModelConfig
from mtf.models.stacking import unstack_layers
from mtf.training import AdamWConfig, ScheduleConfig
from mtf.training.trainer import Trainer
from mtf.training.transformations import Transformation
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer

STEP = jnp.zeros((), jnp.int32)  # not used by optax's optimizers, which count themselves
_RATE = 1e-2


def trainer_with(optimizer: Any, *, scan_layers: bool = False) -> Trainer:
    network = dataclasses.replace(NETWORK, num_encoder_layers=2, scan_layers=scan_layers)
    return dataclasses.replace(make_trainer(), model=ModelConfig(network), optimizer=optimizer)


def trained(trainer: Trainer, steps: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters, unrolled, and the metrics of the last step."""
    state, metrics = trainer.init_state(), {}
    for _ in range(steps):
        state, metrics = trainer.train_step(state, make_batch())
    return unstack_layers(jax.device_get(state.params)), metrics


def assert_close(a: Any, b: Any, tolerance: float = 2e-6) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance), a, b)


@pytest.mark.slow
def test_adamw_of_optax_is_ours() -> None:
    ours = trainer_with(AdamWConfig(ScheduleConfig("constant", _RATE)))
    theirs = trainer_with(optax.adamw(_RATE, weight_decay=0.0))
    (a, measured), (b, unknown) = trained(ours), trained(theirs)
    assert_close(a, b)
    assert float(measured["learning_rate"]) == pytest.approx(_RATE)
    assert "learning_rate" not in unknown
    assert float(unknown["weight_gradient_norm"]) > 0


def stacked_tree(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kernel, scale = rng.normal(size=(3, 4, 2)), rng.normal(size=(2,))
    return {"encoder": {"layers": {"kernel": jnp.float32(kernel)}, "norm": jnp.float32(scale)}}


def test_each_layer_is_updated_by_itself_also_if_layers_are_stacked() -> None:
    """LAMB scales the update of each matrix by its norm."""
    params, grads, loss = stacked_tree(0), stacked_tree(1), jnp.zeros(())
    optimizer = optax.lamb(_RATE)
    transformation = Transformation(optimizer, {}, {})
    states = transformation.init(params)
    new, states = transformation.update(STEP, loss, grads, params, states)
    new, states = transformation.update(STEP, loss, grads, new, states)
    assert new["encoder"]["layers"]["kernel"].shape == (3, 4, 2)
    for layer in range(3):
        alone = params["encoder"]["layers"]["kernel"][layer]
        gradient = grads["encoder"]["layers"]["kernel"][layer]
        state = optimizer.init(alone)
        for _ in range(2):
            change, state = optimizer.update(gradient, state, alone)
            alone += change
        np.testing.assert_allclose(new["encoder"]["layers"]["kernel"][layer], alone, rtol=1e-6)


def test_names_in_the_state() -> None:
    trainer = trainer_with(optax.chain(optax.clip(1.0), optax.scale_by_adam()), scan_layers=True)
    shapes = trainer.state_shapes.param_states
    layers = shapes["1"]["mu"]["encoder"]
    assert sorted(name for name in layers if name.startswith("layers")) == ["layers_0", "layers_1"]
    assert shapes["1"]["count"].shape == ()


def test_the_state_is_sharded_like_the_parameters() -> None:
    params = {"a": {"kernel": np.zeros((4, 6))}, "b": np.zeros(3)}
    axes = {"a": {"kernel": ("embed", "mlp")}, "b": ("embed",)}
    optimizer = optax.chain(optax.scale_by_adam(), optax.scale_by_factored_rms(True, 0.8, 0, 2))
    transformation = Transformation(optimizer, params, axes)
    states = jax.eval_shape(transformation.init, params)
    found = transformation.state_axes(params, states)
    assert found["0"]["mu"] == axes
    assert found["0"]["count"] == ()
    assert states["1"]["v_row"]["a"]["kernel"].shape == (4,)
    assert found["1"]["v_row"]["a"]["kernel"] == (None,)


def test_the_rate_of_inject_hyperparams_is_that_of_the_last_update() -> None:
    params, loss = stacked_tree(0), jnp.zeros(())
    schedule = optax.linear_schedule(0.0, 1.0, 10)
    optimizer = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.sgd)(schedule))
    transformation = Transformation(optimizer, {}, {})
    states = transformation.init(params)
    for before in range(3):
        params, states = transformation.update(STEP, loss, params, params, states)
        rate = transformation.learning_rate(STEP, states)
        assert rate is not None and float(rate) == pytest.approx(before / 10)
    lion = Transformation(optax.lion(0.1), {}, {})
    assert lion.learning_rate(STEP, lion.init(params)) is None


def test_a_random_key_in_the_state_is_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer: its state contains a random key \(rng_key\)"):
        _ = trainer_with(optax.add_noise(0.1, 0.5, key=jax.random.key(0))).state_shapes
