"""Adapters: their parameters, and what they compute."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.checkpoints.finite import flat_names
from mtf.models import LoraConfig, T5Config, lora, t5
from mtf.models.stacking import stack_layers
from mtf.models.types import Params
from tests import made_up

PLAIN = made_up.network(head_dim=6, num_encoder_layers=2, num_decoder_layers=2, mlp_dim=10)


def adapted(**settings: Any) -> T5Config:
    return dataclasses.replace(PLAIN, lora=LoraConfig(**{"rank": 3, "alpha": 6.0, **settings}))


def random_params(config: T5Config) -> Params:
    """Initial parameters, but with adapters that are not zero."""
    params = t5.init_params(config, jax.random.PRNGKey(0))
    rng = np.random.default_rng(1)

    def changed(path: Any, x: jax.Array) -> jax.Array:
        if path[-1].key != "lora_b":
            return x
        return jnp.asarray(rng.normal(size=x.shape).astype(np.float32))

    return jax.tree_util.tree_map_with_path(changed, params)


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
    return {name: rng.integers(2, 32, (3, 5)).astype(np.int32) for name in names}


def test_queries_and_values_are_adapted_by_default() -> None:
    names = flat_names(t5.param_shapes(adapted()))
    found = {name: shape.shape for name, shape in names.items() if "/lora_" in name}
    # Encoder self-attention, decoder self-attention, cross-attention; two layers; two kernels.
    assert len(found) == 3 * 2 * 2 * 3
    assert found["decoder/layers_1/encoder_decoder_attention/value/lora_a"] == (8, 3)
    assert found["decoder/layers_1/encoder_decoder_attention/value/lora_b"] == (3, 12)
    assert found["encoder/layers_0/attention/query/lora_scale"] == ()
    plain = set(flat_names(t5.param_shapes(PLAIN)))
    assert set(names) - set(found) == plain


@pytest.mark.slow
def test_new_adapters_change_nothing() -> None:
    config = adapted(targets=(".*",))
    params = t5.init_params(config, jax.random.PRNGKey(0))
    with_adapters = t5.apply(config, params, batch())
    # The other parameters do not depend on the adapters.
    plain = t5.apply(PLAIN, t5.init_params(PLAIN, jax.random.PRNGKey(0)), batch())
    np.testing.assert_array_equal(with_adapters, plain)
    a = params["encoder"]["layers_0"]["mlp"]["wo"]["lora_a"]
    assert np.abs(a).max() <= 10**-0.5 and np.abs(a).max() > 0.9 * 10**-0.5
    assert not params["encoder"]["layers_0"]["mlp"]["wo"]["lora_b"].any()
    assert params["encoder"]["layers_0"]["mlp"]["wo"]["lora_scale"] == 2.0


@pytest.mark.parametrize("stacked", [False, True])
def test_adapters_act_as_if_added_to_their_kernels(stacked: bool) -> None:
    config = dataclasses.replace(adapted(targets=(".*",)), scan_layers=stacked)
    params = random_params(config)

    def added(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        out = {name: added(x) for name, x in node.items() if not name.startswith("lora_")}
        if "lora_a" in node:
            a, b = (np.asarray(node[name], np.float64) for name in ("lora_a", "lora_b"))
            out["kernel"] = np.asarray(node["kernel"] + 6.0 / 3 * (a @ b), np.float32)
        return out

    expected = t5.apply(PLAIN, added(params), batch())
    params = stack_layers(params) if stacked else params
    np.testing.assert_allclose(t5.apply(config, params, batch()), expected, rtol=2e-4, atol=2e-4)
    merged = t5.apply(PLAIN, lora.merged(params), batch())
    np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-4)
    assert "lora_a" not in str(jax.tree.structure(lora.merged(params)))


def test_dropout_is_of_the_adapters_inputs_only() -> None:
    config = adapted(targets=("encoder/mlp/wo",), dropout_rate=0.5)
    params = random_params(config)
    rng = jax.random.PRNGKey(5)
    plain = t5.apply(config, params, batch())
    dropped = t5.apply(config, params, batch(), dropout_rng=rng)
    assert np.abs(dropped - plain).max() > 1e-3
    np.testing.assert_array_equal(t5.apply(config, params, batch(), dropout_rng=rng), dropped)
    without = dataclasses.replace(config, lora=dataclasses.replace(config.lora, dropout_rate=0.0))
    np.testing.assert_array_equal(t5.apply(without, params, batch(), dropout_rng=rng), plain)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"targets": ("query",)}, r"'query'; expected .*encoder/attention/query.* mean .*/query"),
        ({"targets": ("token_embedder",)}, "no kernel of a layer matches 'token_embedder'"),
        ({"targets": ()}, "targets is empty"),
        ({"targets": ("(",)}, r"'\(' is not a valid regular expression"),
        ({"rank": 0}, "rank must be at least 1, not 0"),
        ({"alpha": 0.0}, "alpha must be positive"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        t5.param_shapes(adapted(**settings))
