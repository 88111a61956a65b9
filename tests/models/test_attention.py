"""Attention and its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.models import t5
from mtf.models.attention import dot_product_attention
from mtf.models.settings import T5Config
from mtf.models.types import Dropout, Params

ROWS, QUERIES, KEYS, HEADS, SIZE = 3, 6, 5, 2, 4
KEEP = 0.75


def random_arguments(has_bias: bool) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "query": (ROWS, QUERIES, HEADS, SIZE),
        "key": (ROWS, KEYS, HEADS, SIZE),
        "value": (ROWS, KEYS, HEADS, SIZE),
    }
    if has_bias:
        shapes["bias"] = (1, HEADS, QUERIES, KEYS)
    return {name: jnp.asarray(2 * rng.standard_normal(s), "float32") for name, s in shapes.items()}


def textbook(
    arguments: dict[str, jax.Array], mask: jax.Array, kept: jax.Array | float
) -> jax.Array:
    """softmax(QKᵀ + bias) V, head by head, and dropout of the weights."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", arguments["query"], arguments["key"])
    logits = jnp.where(mask, logits + arguments.get("bias", 0.0), -1e10)
    weights = jax.nn.softmax(logits, axis=-1) * kept
    return jnp.einsum("bhqk,bkhd->bqhd", weights, arguments["value"])


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rate", [0.0, 1 - KEEP])
def test_attention_and_its_gradient_are_those_of_the_formula(has_bias: bool, rate: float) -> None:
    arguments = random_arguments(has_bias)
    seen = np.ones((ROWS, 1, QUERIES, KEYS), bool)
    seen[0, :, :, 3:] = False
    seen[1] = np.tril(seen[1])
    seen[2, :, 4] = False  # a query that sees no key, such as padding
    mask = jnp.asarray(seen)
    place, rng = 0, jax.random.PRNGKey(3)
    kept: jax.Array | float = 1.0
    if rate:
        key = jax.random.fold_in(rng, place)
        kept = jax.random.bernoulli(key, KEEP, (ROWS, HEADS, 1, KEYS)) / KEEP
    direction = jnp.asarray(
        np.random.default_rng(1).standard_normal((ROWS, QUERIES, HEADS, SIZE)), "float32"
    )

    def ours(arguments: dict[str, jax.Array]) -> jax.Array:
        bias = arguments.get("bias")
        names = ("query", "key", "value")
        y = dot_product_attention(
            *(arguments[name] for name in names), mask, bias, Dropout(rate, rng)
        )
        return jnp.sum(y * direction)

    def theirs(arguments: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(textbook(arguments, mask, kept) * direction)

    value, gradient = jax.value_and_grad(ours)(arguments)
    expected, expected_gradient = jax.value_and_grad(theirs)(arguments)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name in arguments:
        np.testing.assert_allclose(
            gradient[name], expected_gradient[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_training_keeps_no_logits_of_attention() -> None:
    length, rows, heads = 256, 4, 4

    def temporary_bytes(num_layers: int) -> int:
        config = T5Config(
            **{"vocab_size": 64, "emb_dim": 16, "num_heads": heads, "head_dim": 4, "mlp_dim": 16},
            **{"num_encoder_layers": num_layers, "num_decoder_layers": 1, "dropout_rate": 0.0},
            dtype="float32",
            remat_policy="none",
        )
        tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
        batch = {
            "encoder_input_tokens": tokens,
            "decoder_input_tokens": tokens,
            "decoder_target_tokens": tokens,
        }
        params = t5.param_shapes(config, stacked=True)

        def loss(params: Params, batch: t5.Batch) -> jax.Array:
            return jnp.sum(t5.apply(config, params, batch))

        compiled = jax.jit(jax.grad(loss)).lower(params, batch).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    logits_bytes = rows * heads * length * length * 4
    assert (temporary_bytes(10) - temporary_bytes(2)) / 8 < logits_bytes / 2
