"""The network: its size, its parts, attention, adapters, and what may not influence what."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf import builders
from mtf.base.errors import UserError
from mtf.data.examples import Example
from mtf.data.packing import to_batch
from mtf.models import LoraConfig, lora, t5
from mtf.models.argmax import argmax
from mtf.models.attention import dot_product_attention
from mtf.models.settings import T5Config
from mtf.models.stacking import stack_layers, unstack_layers
from mtf.models.trees import flat_names
from mtf.models.types import Dropout, Params
from tests import made_up

SMALL = made_up.network(
    vocab_size=48, emb_dim=16, num_encoder_layers=2, num_decoder_layers=3, mlp_dim=24
)

APPLY = jax.jit(t5.apply, static_argnums=0)

# Published or counted in the released checkpoints.
NUM_PARAMETERS = {
    "t5_1_1": {
        "small": 76_961_152,
        "base": 247_577_856,
        "large": 783_150_080,
        "xl": 2_849_757_184,
        "xxl": 11_135_332_352,
    },
    "mt5": {
        "small": 300_176_768,
        "base": 582_401_280,
        "large": 1_229_581_312,
        "xl": 3_742_619_648,
        "xxl": 12_921_057_280,
    },
    "t5_1_0": {
        "small": 60_506_624,
        "base": 222_903_552,
        "large": 737_668_096,
        "3b": 2_851_598_336,
        "11b": 11_307_321_344,
    },
}


@pytest.mark.parametrize(
    ("family", "size", "expected"),
    [(family, size, n) for family, sizes in NUM_PARAMETERS.items() for size, n in sizes.items()],
)
def test_number_of_parameters(family: str, size: str, expected: int) -> None:
    network = fdl.build(getattr(builders.model, family)(size)).network
    assert t5.num_parameters(network) == expected
    shapes = jax.tree.leaves(t5.param_shapes(network, stacked=True))
    assert sum(int(np.prod(shape.shape)) for shape in shapes) == expected


def random_batch(config: T5Config, rows: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, config.vocab_size, (rows, 10)).astype(np.int32)
    targets = rng.integers(2, config.vocab_size, (rows, 7)).astype(np.int32)
    inputs[1, 6:] = 0
    targets[1, 4:] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets,
    }


@pytest.mark.parametrize("relpos_bias_per_layer", [False, True])
def test_scanned_and_unrolled_agree(relpos_bias_per_layer: bool) -> None:
    small = dataclasses.replace(SMALL, relpos_bias_per_layer=relpos_bias_per_layer)
    params = t5.init_params(small, jax.random.PRNGKey(0))
    batch = random_batch(small)
    stacked = stack_layers(params)
    np.testing.assert_allclose(APPLY(small, stacked, batch), APPLY(small, params, batch), atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    axes = t5.param_axes(small, stacked=True)
    jax.tree.map(
        lambda shape, names: None if len(shape.shape) == len(names) else pytest.fail(str(names)),
        t5.param_shapes(small, stacked=True),
        axes,
    )


def test_a_bias_per_layer() -> None:
    config = dataclasses.replace(SMALL, relpos_bias_per_layer=True)
    one = t5.init_params(SMALL, jax.random.PRNGKey(0))
    own: Params = {}
    for side in ("encoder", "decoder"):
        stack = dict(one[side])
        bias = stack.pop("relpos_bias")
        layers = {name: {**layer, "relpos_bias": bias} for name, layer in stack.items()}
        own[side] = {**stack, **{k: v for k, v in layers.items() if k.startswith("layers_")}}
    own["token_embedder"] = one["token_embedder"]
    own["decoder"]["logits_dense"] = one["decoder"]["logits_dense"]
    shapes = jax.tree.map(lambda x: x.shape, t5.param_shapes(config))
    assert jax.tree.map(lambda x: x.shape, own) == shapes
    batch = random_batch(config)
    expected = np.asarray(APPLY(SMALL, one, batch))
    np.testing.assert_array_equal(APPLY(config, own, batch), expected)
    # The bias of each layer counts, and of both stacks.
    for side, last in (("encoder", "layers_1"), ("decoder", "layers_2")):
        for name in ("layers_0", last):
            layer = own[side][name]
            zero = {"rel_embedding": jnp.zeros_like(layer["relpos_bias"]["rel_embedding"])}
            stack = {**own[side], name: {**layer, "relpos_bias": zero}}
            changed = np.asarray(APPLY(config, {**own, side: stack}, batch))
            assert np.abs(changed - expected).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("remat_policy", ["minimal", "full"])
def test_remat_changes_nothing_but_memory(remat_policy: str) -> None:
    small = dataclasses.replace(SMALL, num_encoder_layers=1, num_decoder_layers=1)
    params = t5.init_params(small, jax.random.PRNGKey(0))
    batch = random_batch(small)

    def loss(config: T5Config, params: Params) -> jax.Array:
        rng = jax.random.PRNGKey(1)
        return jnp.sum(jnp.square(APPLY(config, params, batch, dropout_rng=rng)))

    config = dataclasses.replace(small, dropout_rate=0.1)
    remat = dataclasses.replace(config, remat_policy=remat_policy)
    grad = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
    expected = grad(config, params)
    ours = grad(remat, params)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-3)
    jax.tree.map(close, ours, expected)


def test_the_decoder_does_not_see_the_future_and_nobody_sees_padding() -> None:
    params = t5.init_params(SMALL, jax.random.PRNGKey(0))
    batch = random_batch(SMALL)
    logits = np.asarray(APPLY(SMALL, params, batch))
    later = {k: v.copy() for k, v in batch.items()}
    later["decoder_input_tokens"][0, 5] = 3
    changed = np.asarray(APPLY(SMALL, params, later))
    np.testing.assert_array_equal(changed[0, :5], logits[0, :5])
    assert np.abs(changed[0, 5:] - logits[0, 5:]).max() > 1e-3

    shorter = {k: v.copy() for k, v in batch.items()}
    shorter["encoder_input_tokens"] = shorter["encoder_input_tokens"][:, :6]
    cut = np.asarray(APPLY(SMALL, params, shorter))
    np.testing.assert_allclose(cut[1, :4], logits[1, :4], atol=1e-5)


def test_packed_sequences_do_not_see_each_other() -> None:
    params = t5.init_params(SMALL, jax.random.PRNGKey(0))
    rng = np.random.default_rng(3)
    sizes = [(5, 3), (4, 2)]
    examples = [Example(rng.integers(2, 48, i), rng.integers(2, 48, t)) for i, t in sizes]
    packed = to_batch([examples], {"inputs": 12, "targets": 8}, 1, pack=True)
    together = np.asarray(APPLY(SMALL, params, packed))[0]
    start = 0
    for example, (i, t) in zip(examples, sizes, strict=True):
        alone = to_batch([[example]], {"inputs": i, "targets": t}, 1, pack=False)
        expected = np.asarray(APPLY(SMALL, params, alone))[0]
        np.testing.assert_allclose(together[start : start + t], expected, atol=1e-5)
        start += t


def test_relative_position_buckets() -> None:
    # By hand from the T5 paper's rule: 32 buckets, distances up to 128. Causal: 16 exact ones,
    # then logarithmic; 128 and beyond share the last.
    causal = t5.relative_position_bucket(
        -jnp.array([-5, 0, 1, 15, 16, 127, 128, 1000]),
        bidirectional=False,
        num_buckets=32,
        max_distance=128,
    )
    assert causal.tolist() == [0, 0, 1, 15, 16, 31, 31, 31]
    # Both directions: 16 buckets each, 8 exact; keys after the query have the upper half.
    both = t5.relative_position_bucket(
        jnp.array([0, -1, 1, -7, 7, -8, 8, -1000, 1000]),
        bidirectional=True,
        num_buckets=32,
        max_distance=128,
    )
    assert both.tolist() == [0, 1, 17, 7, 23, 8, 24, 15, 31]


def test_initial_parameters_have_t5s_scales() -> None:
    config = dataclasses.replace(
        SMALL, vocab_size=512, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512
    )
    params = t5.init_params(config, jax.random.PRNGKey(0))
    layer = params["decoder"]["layers_1"]
    attention = layer["self_attention"]
    deviations = {
        "embedding": (params["token_embedder"]["embedding"], 1.0),
        "query": (attention["query"]["kernel"], 256**-0.5 * 64**-0.5),
        "key": (attention["key"]["kernel"], 256**-0.5),
        "out": (attention["out"]["kernel"], 256**-0.5),
        "wi_0": (layer["mlp"]["wi_0"]["kernel"], 256**-0.5),
        "wo": (layer["mlp"]["wo"]["kernel"], 512**-0.5),
        "logits": (params["decoder"]["logits_dense"]["kernel"], 256**-0.5),
        # Uniform with variance 1 / mean(fan in, fan out) of (4 heads, 32 buckets).
        "relpos": (params["decoder"]["relpos_bias"]["rel_embedding"], 18**-0.5),
    }
    for name, (values, expected) in deviations.items():
        tolerance = 0.15 if name == "relpos" else 0.02
        assert float(jnp.std(values)) == pytest.approx(expected, rel=tolerance), name
    assert float(jnp.max(jnp.abs(params["encoder"]["encoder_norm"]["scale"] - 1.0))) == 0.0
    # Truncated at two standard deviations, unlike the attention kernels.
    wo = layer["mlp"]["wo"]["kernel"] * 512**0.5
    assert float(jnp.max(jnp.abs(wo))) < 2.3


def test_dropout_is_shared_along_the_sequence_and_keeps_the_mean() -> None:
    drop = Dropout(0.25, jax.random.PRNGKey(0))
    x = jnp.ones((64, 10, 128))
    y = np.asarray(drop(x, 0))
    assert set(np.unique(y.round(4))) == {np.float32(0.0), np.float32(1.3333)}
    assert (y == y[:, :1]).all()
    assert y.mean() == pytest.approx(1.0, abs=0.02)
    alone = np.asarray(drop(x, 0, shared_axis=None))
    assert not (alone == alone[:, :1]).all()


def test_bfloat16_activations_and_float32_logits() -> None:
    config = dataclasses.replace(SMALL, dtype="bfloat16")
    params = t5.init_params(config, jax.random.PRNGKey(0))
    batch = random_batch(config)
    assert (
        jax.eval_shape(functools.partial(t5.decoder_output, config), params, batch).dtype
        == jnp.bfloat16
    )
    logits = APPLY(config, params, batch)
    assert logits.dtype == jnp.float32
    exact = APPLY(SMALL, params, batch)
    assert float(jnp.max(jnp.abs(logits - exact))) < 0.1 * float(jnp.std(exact))


def test_the_first_of_equal_logits_is_taken() -> None:
    logits = np.random.default_rng(0).integers(0, 5, (7, 3, 11)).astype(np.float32)
    np.testing.assert_array_equal(argmax(logits), np.argmax(logits, axis=-1))


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
    return random_batch(PLAIN, rows=3)


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
