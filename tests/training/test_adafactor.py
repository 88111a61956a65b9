"""Adafactor against optax's, and its rules for stacked and higher-rank parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mtf.training import adafactor
from mtf.training.settings import AdafactorConfig, ScheduleConfig

RATE = 0.01
CONFIG = AdafactorConfig(ScheduleConfig("constant", RATE), min_dim_size_to_factor=8)


def run(config: AdafactorConfig, param: jax.Array, grads: list[jax.Array], axes: tuple[str, ...]):
    slots = adafactor.init_slots(config, param, axes)
    for step, grad in enumerate(grads):
        param, slots = adafactor.update_param(
            config, jnp.int32(step), jnp.float32(RATE), param, slots, grad, axes
        )
    return param, slots


def random_grads(shape: tuple[int, ...], num_steps: int = 3) -> list[jax.Array]:
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(num_steps)]


def random_param(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((16, 24), ("embed", "mlp")),
        ((24, 16), ("mlp", "embed")),
        ((16, 16), ("embed", "joined_kv")),
        ((4, 24), ("heads", "relpos_buckets")),  # too small to factor
        ((16,), ("embed",)),
    ],
)
def test_matrices_and_vectors_are_updated_as_by_optax(
    shape: tuple[int, ...], axes: tuple[str, ...]
) -> None:
    param, grads = random_param(shape), random_grads(shape)
    theirs = optax.adafactor(RATE, min_dim_size_to_factor=8)
    expected, state = param, theirs.init(param)
    for grad in grads:
        updates, state = theirs.update(grad, state, expected)
        expected = optax.apply_updates(expected, updates)
    # T5X multiplies learning rate and scale first, optax the update: a rounding apart.
    ours, _ = run(CONFIG, param, grads, axes)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (4, 24), (16,)])
def test_stacked_layers_are_updated_as_each_layer_alone(shape: tuple[int, ...]) -> None:
    axes = ("embed", "mlp")[: len(shape)]
    param, grads = random_param((3, *shape)), random_grads((3, *shape))
    stacked, slots = run(CONFIG, param, grads, ("layers", *axes))
    for layer in range(3):
        alone, alone_slots = run(CONFIG, param[layer], [g[layer] for g in grads], axes)
        np.testing.assert_allclose(stacked[layer], alone, rtol=1e-6)
        for name, slot in alone_slots.items():
            assert slots[name][layer].shape == slot.shape
            np.testing.assert_allclose(slots[name][layer], slot, rtol=1e-6)


def test_higher_rank_is_factored_by_logical_rules() -> None:
    # (embed, heads, kv): rows are embed, columns heads and kv together, whatever their size.
    slots = adafactor.init_slots(CONFIG, jnp.zeros((4, 2, 3)), ("embed", "heads", "kv"))
    assert slots["v_row"].shape == (4,)
    assert slots["v_col"].shape == (2, 3)
    param, grads = random_param((4, 2, 3)), random_grads((4, 2, 3), 1)
    _, slots = run(CONFIG, param, grads, ("embed", "heads", "kv"))
    # At step 0 the decay is 0: the slots are plain means of squared gradients.
    squared = np.asarray(grads[0], np.float64) ** 2
    np.testing.assert_allclose(slots["v_row"], squared.mean(axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(slots["v_col"], squared.mean(axis=0), rtol=1e-6)


def test_batch_dimensions_are_clipped_and_scaled_apart() -> None:
    axes = ("stack", "embed", "mlp")
    param, grads = random_param((2, 4, 6)), random_grads((2, 4, 6))
    param = param.at[1].multiply(100.0)
    both, _ = run(CONFIG, param, grads, axes)
    for i in range(2):
        one, _ = run(CONFIG, param[i : i + 1], [g[i : i + 1] for g in grads], axes)
        np.testing.assert_allclose(both[i : i + 1], one, rtol=1e-6)


def test_weight_decay_is_independent_of_the_learning_rate_unless_asked() -> None:
    param = random_param((16,))
    nothing = [jnp.zeros((16,))]
    config = AdafactorConfig(ScheduleConfig("constant", RATE), weight_decay_rate=0.1)
    np.testing.assert_allclose(run(config, param, nothing, ("embed",))[0], 0.9 * param, rtol=1e-6)
    config = AdafactorConfig(
        ScheduleConfig("constant", RATE), weight_decay_rate=0.1, weight_decay_rate_lr_exponent=2.0
    )
    expected = (1 - 0.1 * RATE**2) * param
    np.testing.assert_allclose(run(config, param, nothing, ("embed",))[0], expected, rtol=1e-6)


def test_the_first_moment_averages_updates() -> None:
    param, grads = random_param((16,)), random_grads((16,), 1)
    plain, _ = run(CONFIG, param, grads, ("embed",))
    config = AdafactorConfig(ScheduleConfig("constant", RATE), min_dim_size_to_factor=8, beta1=0.9)
    averaged, slots = run(config, param, grads, ("embed",))
    np.testing.assert_allclose(param - averaged, 0.1 * (param - plain), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(slots["m"], param - averaged, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", [(300, 20_000), (20_000, 3)])  # one is wide
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_means_of_squares_are_those_of_float64(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    x = random_param(shape)
    expected = np.mean(np.square(np.asarray(x, np.float64)), axis=dims)
    found = jax.jit(adafactor.mean_square, static_argnums=1)(x, dims)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
