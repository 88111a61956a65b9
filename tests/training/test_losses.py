"""Cross-entropy against its definition, in float64 and numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.training.losses import normalizing_factor_and_weights, weighted_cross_entropy


def reference(
    hidden: np.ndarray,
    kernel: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    z_loss: float,
    smoothing: float,
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Loss, z-loss and both gradients from the definition: softmax, soft labels, log Z."""
    hidden, kernel = hidden.astype(np.float64), kernel.astype(np.float64)
    logits = hidden @ kernel
    log_z = np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    vocab = kernel.shape[1]
    labels = np.full(logits.shape, smoothing / (vocab - 1))
    np.put_along_axis(labels, targets[..., None], 1 - smoothing, axis=-1)
    entropy = -np.sum(labels[0, 0] * np.log(labels[0, 0] + 1e-300))
    cross_entropy = -np.sum(labels * (logits - log_z), axis=-1) - entropy
    z = z_loss * log_z[..., 0] ** 2
    probabilities = np.exp(logits - log_z)
    d_logits = probabilities - labels + 2 * z_loss * log_z * probabilities
    d_logits *= weights[..., None]
    return (
        float(np.sum((cross_entropy + z) * weights)),
        float(np.sum(z * weights)),
        d_logits @ kernel.T,
        np.einsum("ble,blv->ev", hidden, d_logits),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 1, 3, 4, 7, 100])
def test_loss_and_gradients_follow_the_definition(chunk: int | None, smoothing: float) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3, 7, 5)).astype(np.float32)
    kernel = rng.normal(size=(5, 11)).astype(np.float32)
    targets = rng.integers(0, 11, (3, 7))
    weights = rng.integers(0, 3, (3, 7)).astype(np.float32) / 2
    expected = reference(hidden, kernel, targets, weights, 1e-2, smoothing)

    def loss(h: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums = weighted_cross_entropy(
            h,
            k,
            jnp.asarray(targets),
            jnp.asarray(weights),
            z_loss=1e-2,
            label_smoothing=smoothing,
            chunk=chunk,
        )
        return 3.0 * sums.loss, sums.z_loss

    (value, z), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, kernel)
    np.testing.assert_allclose(value / 3, expected[0], rtol=1e-5)
    np.testing.assert_allclose(z, expected[1], rtol=1e-5)
    for ours, theirs in zip(gradients, expected[2:], strict=True):
        np.testing.assert_allclose(ours / 3, theirs, rtol=1e-4, atol=1e-5)


def test_a_perfect_prediction_costs_nothing_with_smoothed_labels() -> None:
    # Logits whose softmax is 0.9 on the target and 0.1 / 3 elsewhere.
    logits = jnp.log(jnp.array([[[0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3]]]))
    sums = weighted_cross_entropy(
        logits, jnp.eye(4), jnp.array([[0]]), jnp.ones((1, 1)), label_smoothing=0.1
    )
    assert abs(float(sums.loss)) < 1e-6
    assert float(sums.num_correct) == 1.0


def test_chunks_hold_a_part_of_the_logits_only() -> None:
    hidden, kernel = jnp.zeros((2, 64, 8)), jnp.zeros((8, 1000))
    targets, weights = jnp.zeros((2, 64), jnp.int32), jnp.ones((2, 64))

    def loss(h: jax.Array, k: jax.Array, chunk: int | None) -> jax.Array:
        return weighted_cross_entropy(h, k, targets, weights, chunk=chunk).loss

    def temporaries(chunk: int | None) -> int:
        grad = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
        return grad.lower(hidden, kernel, chunk).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(None) >= 2 * 64 * 1000 * 4  # all logits
    assert temporaries(4) <= 2 * 64 * 1000 * 4 / 4


def test_normalizing_factors() -> None:
    batch = {
        "decoder_target_tokens": jnp.array([[5, 6, 7, 0], [8, 9, 0, 0]]),
        "decoder_loss_weights": jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]]),
    }
    assert normalizing_factor_and_weights(None, batch)[0] == 1.0
    assert normalizing_factor_and_weights(234496, batch)[0] == 234496.0
    assert normalizing_factor_and_weights("NUM_REAL_TARGET_TOKENS", batch)[0] == 5.0
    assert normalizing_factor_and_weights("NUM_TOTAL_TARGET_TOKENS", batch)[0] == 8.0
    factor, weights = normalizing_factor_and_weights("AVERAGE_PER_SEQUENCE", batch)
    third = 1 / 3
    np.testing.assert_allclose(factor, 2.0, rtol=1e-6)
    np.testing.assert_allclose(weights, [[third, third, third, 0], [0.5, 0.5, 0, 0]], rtol=1e-6)


def test_average_per_sequence_sees_the_sequences_of_a_packed_row() -> None:
    batch = {
        "decoder_target_tokens": jnp.array([[5, 1, 6, 7, 8, 1, 0]]),
        "decoder_loss_weights": jnp.array([[1, 1, 0, 1, 1, 1, 0]]),
        "decoder_segment_ids": jnp.array([[1, 1, 2, 2, 2, 2, 0]]),
    }
    factor, weights = normalizing_factor_and_weights("AVERAGE_PER_SEQUENCE", batch)
    third = 1 / 3
    np.testing.assert_allclose(factor, 2.0, rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0, third, third, third, 0]], rtol=1e-6)
