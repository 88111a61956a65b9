"""The T5 network (Raffel et al. 2020, §2.1; Shazeer 2020).

The functions take a nested dict of float32 parameters with T5X's names. The function `parameters`
returns the shape, the logical axes and the initializer of each parameter. The layers are named
`layers_0`, `layers_1`, …; if `config.scan_layers` is set, they are stacked in a single entry
`layers` (see `mtf.models.stacking`).

In shapes, b is the batch size, q and k are the numbers of query and key positions, h is the number
of heads, and d is the head size.
"""

from __future__ import annotations

import functools
import math
import operator
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from mtf.models import flash_attention, lora
from mtf.models.attention import SAVED, dot_product_attention
from mtf.models.settings import T5Config
from mtf.models.stacking import layers_of, stack_layers
from mtf.models.types import Dropout, Params
from mtf.partitioning.mesh import constrain

Batch = Mapping[str, jax.Array]
LayerState = TypeVar("LayerState")

LAYER_NORM_EPSILON = 1e-6


class Segments(NamedTuple):
    """The segment ids of queries, (b, q), and of keys, (b, k); see `segment_mask`."""

    query: jax.Array
    key: jax.Array


class Parameter(NamedTuple):
    """The shape, logical axes (one name per dimension) and initializer of a parameter."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


_variance_scaling = jax.nn.initializers.variance_scaling
_fan_in_normal = _variance_scaling(1.0, "fan_in", "normal")
_fan_in_truncated = _variance_scaling(1.0, "fan_in", "truncated_normal")


def parameters(config: T5Config) -> Params:
    """Returns a tree of `Parameter`s with T5X's names; layers are not stacked."""
    sizes = {
        "vocab": config.vocab_size,
        "embed": config.emb_dim,
        "mlp": config.mlp_dim,
        "heads": config.num_heads,
        "joined_kv": config.num_heads * config.head_dim,
        "relpos_buckets": config.relative_attention_num_buckets,
    }

    def parameter(name: str, init: Any, *axes: str) -> Params:
        return {name: Parameter(tuple(sizes[axis] for axis in axes), axes, init)}

    def query_init(rng: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        # T5 scales the initial query kernel instead of the attention logits.
        return _fan_in_normal(rng, shape, dtype) / math.sqrt(config.head_dim)

    uniform = _variance_scaling(1.0, "fan_avg", "uniform")
    relpos_bias = {"relpos_bias": parameter("rel_embedding", uniform, "heads", "relpos_buckets")}
    of_layer, of_stack = (relpos_bias, {}) if config.relpos_bias_per_layer else ({}, relpos_bias)
    norm = parameter("scale", jax.nn.initializers.ones, "embed")
    attention = {
        "query": parameter("kernel", query_init, "embed", "joined_kv"),
        "key": parameter("kernel", _fan_in_normal, "embed", "joined_kv"),
        "value": parameter("kernel", _fan_in_normal, "embed", "joined_kv"),
        "out": parameter("kernel", _fan_in_normal, "joined_kv", "embed"),
    }
    projection = parameter("kernel", _fan_in_truncated, "embed", "mlp")
    mlp = {
        **dict.fromkeys(_mlp_projections(config), projection),
        "wo": parameter("kernel", _fan_in_truncated, "mlp", "embed"),
    }
    encoder_layer = {
        **of_layer,
        "pre_attention_layer_norm": norm,
        "attention": attention,
        "pre_mlp_layer_norm": norm,
        "mlp": mlp,
    }
    decoder_layer = {
        **of_layer,
        "pre_self_attention_layer_norm": norm,
        "self_attention": attention,
        "pre_cross_attention_layer_norm": norm,
        "encoder_decoder_attention": attention,
        "pre_mlp_layer_norm": norm,
        "mlp": mlp,
    }
    normal = jax.nn.initializers.normal(1.0)
    tree: Params = {
        "token_embedder": parameter("embedding", normal, "vocab", "embed"),
        "encoder": {
            **of_stack,
            **{f"layers_{i}": encoder_layer for i in range(config.num_encoder_layers)},
            "encoder_norm": norm,
        },
        "decoder": {
            **of_stack,
            **{f"layers_{i}": decoder_layer for i in range(config.num_decoder_layers)},
            "decoder_norm": norm,
        },
    }
    if not config.logits_via_embedding:
        tree["decoder"]["logits_dense"] = parameter("kernel", _fan_in_truncated, "embed", "vocab")
    return tree if config.lora is None else lora.with_adapters(tree, config.lora)


def _mlp_projections(config: T5Config) -> list[str]:
    num_projections = len(config.mlp_activations)
    return ["wi"] if num_projections == 1 else [f"wi_{i}" for i in range(num_projections)]


def _map_parameters(function: Callable[[str, Parameter], Any], config: T5Config) -> Params:
    """Returns a tree of the values of `function(name, parameter)`; layers are not stacked."""
    return jax.tree_util.tree_map_with_path(
        lambda path, parameter: function("/".join(entry.key for entry in path), parameter),
        parameters(config),
        is_leaf=lambda x: isinstance(x, Parameter),
    )


def param_shapes(config: T5Config, *, stacked: bool = False) -> Params:
    """Returns the shapes and dtypes of the parameters without allocating them."""
    shapes = _map_parameters(lambda _, p: jax.ShapeDtypeStruct(p.shape, jnp.float32), config)
    return jax.eval_shape(stack_layers, shapes) if stacked else shapes


def param_axes(config: T5Config, *, stacked: bool = False) -> Params:
    """Returns the logical axes of each parameter as a tuple of names."""
    axes = _map_parameters(lambda _, p: p.axes, config)
    for side in ("encoder", "decoder") if stacked else ():
        layer = axes[side]["layers_0"]
        axes[side] = {k: v for k, v in axes[side].items() if not k.startswith("layers_")}
        axes[side]["layers"] = jax.tree.map(
            lambda names: ("layers", *names), layer, is_leaf=lambda x: isinstance(x, tuple)
        )
    return axes


def init_params(config: T5Config, rng: jax.Array) -> Params:
    """Returns the initial parameters, with separate layers.

    The random key of a parameter depends only on `rng` and on the parameter's name.
    """

    def init(name: str, p: Parameter) -> jax.Array:
        return p.init(jax.random.fold_in(rng, zlib.crc32(name.encode())), p.shape, jnp.float32)

    return _map_parameters(init, config)


def num_parameters(config: T5Config) -> int:
    """Returns the number of parameters."""
    return sum(math.prod(shape.shape) for shape in jax.tree.leaves(param_shapes(config)))


def project(
    config: T5Config,
    params: Params,
    x: jax.Array,
    drop: Dropout | None = None,
    index: int = 0,
) -> jax.Array:
    """Returns `x @ kernel`, plus the output of the kernel's adapter, if any (`mtf.models.lora`).

    The dropout for the adapter's input uses the random key of `drop`, folded with `index`.
    """
    y = dense(x, params["kernel"])
    if config.lora is None or "lora_a" not in params:
        return y
    if drop is not None:
        x = Dropout(config.lora.dropout_rate, drop.rng)(x, index, shared_axis=None)
    low = dense(dense(x, params["lora_a"]), params["lora_b"])
    return y + params["lora_scale"].astype(y.dtype) * low


def dense(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """Returns `x @ kernel`, (…, out), for `x` of shape (…, in), computed in `dtype`.

    The leading axes of `x` are merged, because CPUs compute the gradient of a 2-D product much
    faster.
    """
    dtype = dtype or x.dtype
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)
    return _product(rows, kernel.astype(dtype)).reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns `x @ kernel`, (rows, out), with a kernel gradient that is fast on CPUs."""
    return x @ kernel


def _product_backward(
    operands: tuple[jax.Array, jax.Array], d_y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    d_kernel = jax.lax.platform_dependent(
        x,
        d_y,
        # x.T is copied, because XLA's fastest product on CPUs needs a left operand that is not
        # transposed.
        cpu=lambda x, d_y: jax.lax.optimization_barrier(x.T) @ d_y,
        default=lambda x, d_y: x.T @ d_y,
    )
    return d_y @ kernel.T, d_kernel


_product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _product_backward)


def layer_norm(x: jax.Array, params: Params) -> jax.Array:
    """Applies RMSNorm to `x`; the root mean square is computed in float32."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    y = (x32 * jax.lax.rsqrt(mean_square + LAYER_NORM_EPSILON)).astype(x.dtype)
    return y * params["scale"].astype(x.dtype)


def relative_position_bucket(
    relative_position: jax.Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
    """Returns the bucket of each `relative_position` (key position - query position).

    Half of the buckets contain one distance each; the others contain logarithmically spaced ranges
    of distances up to `max_distance`. In bidirectional attention, half of all buckets are for keys
    after the query.
    """
    offset = jnp.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        offset = jnp.where(relative_position > 0, num_buckets, 0)
        distance = jnp.abs(relative_position)
    else:
        distance = jnp.maximum(-relative_position, 0)
    num_exact = num_buckets // 2
    ratio = jnp.log(distance.astype(jnp.float32) / num_exact + jnp.finfo(jnp.float32).eps)
    coarse = num_exact + (
        ratio / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    ).astype(jnp.int32)
    coarse = jnp.minimum(coarse, num_buckets - 1)
    return offset + jnp.where(distance < num_exact, distance, coarse)


def relpos_bias(
    config: T5Config,
    params: Params,
    query_positions: jax.Array,
    key_positions: jax.Array,
    *,
    bidirectional: bool,
) -> jax.Array:
    """Returns the bias to add to the attention logits, (1, h, q, k) float32.

    `query_positions` has shape (q,), and `key_positions` has shape (k,). `params` contains the
    parameters of a stack or, if `config.relpos_bias_per_layer` is set, those of a layer.
    """
    buckets = relative_position_bucket(
        key_positions[None, :] - query_positions[:, None],
        bidirectional=bidirectional,
        num_buckets=config.relative_attention_num_buckets,
        max_distance=config.relative_attention_max_distance,
    )
    # A gather is not used, because its gradient is a scatter, which is slow on accelerators.
    one_hot = jax.nn.one_hot(buckets.reshape(-1), config.relative_attention_num_buckets)
    bias = params["relpos_bias"]["rel_embedding"].astype(jnp.float32) @ one_hot.T  # (h, q·k)
    return bias.reshape(1, config.num_heads, *buckets.shape)


def _bias_of_layers(
    config: T5Config,
    stack: Params,
    mask: jax.Array | Segments,
    length: int,
    *,
    bidirectional: bool,
) -> Callable[[Params], jax.Array]:
    """Returns a function that returns the bias for `attention`, given a layer's parameters."""
    positions = key_positions = jnp.arange(length)
    if isinstance(mask, Segments):  # All distances of a key from the query, in ascending order.
        positions, key_positions = jnp.arange(2 * length), jnp.asarray([length - 1])

    def bias(params: Params) -> jax.Array:
        found = relpos_bias(config, params, positions, key_positions, bidirectional=bidirectional)
        if isinstance(mask, Segments):
            distances, causal = found[0, :, :, 0], not bidirectional
            return flash_attention.bias_rows(distances, config.head_dim, causal=causal)
        return found

    if config.relpos_bias_per_layer:
        return bias
    shared = bias(stack)
    return lambda _: shared


def split_heads(config: T5Config, x: jax.Array) -> jax.Array:
    """Reshapes (b, length, h·d) to (b, length, h, d)."""
    return x.reshape(*x.shape[:-1], config.num_heads, config.head_dim)


def keys_and_values(
    config: T5Config, params: Params, x: jax.Array, drop: Dropout | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns the keys and the values, each (b, k, h, d), for `x`, (b, k, emb).

    For `drop`, see `project`.
    """
    key, value = (
        split_heads(config, project(config, params[name], x, drop, index))
        for index, name in ((1, "key"), (2, "value"))
    )
    return key, value


def attention(
    config: T5Config,
    params: Params,
    x: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | Segments,
    bias: jax.Array | None,
    dropout: Dropout,
) -> jax.Array:
    """Returns the output of multi-head attention, (b, q, emb).

    The queries are computed from `x`, (b, q, emb). See `dot_product_attention` for `key`, `value`,
    `mask` and `bias`, or `flash_attention` if `mask` is `Segments`.
    """
    query = project(config, params["query"], x, dropout, 3)
    if isinstance(mask, Segments):
        scales = None
        if dropout.rng is not None and dropout.rate > 0:
            scales = dropout(jnp.ones((len(x), config.num_heads, 1, key.shape[1])), 0)[:, :, 0]
        key, value = (x.reshape(*x.shape[:2], -1) for x in (key, value))
        y = flash_attention.flash_attention(query, key, value, *mask, bias, scales, config.head_dim)
    else:
        query = split_heads(config, query)
        y = dot_product_attention(query, key, value, mask, bias, dropout)
        y = y.reshape(*y.shape[:2], -1)
    return project(config, params["out"], y, dropout, 4)


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Returns a mask, (b, 1, q, k), that is True where a query and a key are in the same segment.

    Segment 0 is padding, where the mask is False.
    """
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return same & (key_segments > 0)[:, None, None, :]


def _mask(
    config: T5Config, query_segments: jax.Array, key_segments: jax.Array, *, causal: bool = False
) -> jax.Array | Segments:
    """Returns what `attention` needs instead of `mask`: segments for kernels, otherwise a mask.

    In the kernels, the bias masks keys after the query.
    """
    if flash_attention.is_used(config, query_segments.shape[1], key_segments.shape[1]):
        return Segments(query_segments, key_segments)
    mask = segment_mask(query_segments, key_segments)
    positions = jnp.arange(query_segments.shape[1])
    return mask & (positions[:, None] >= positions[None, :]) if causal else mask


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def mlp(config: T5Config, params: Params, x: jax.Array, dropout: Dropout) -> jax.Array:
    """Applies the feed-forward block to `x`, (b, length, emb)."""
    parts = [
        _ACTIVATIONS[activation](project(config, params[name], x, dropout, index))
        for index, (activation, name) in enumerate(
            zip(config.mlp_activations, _mlp_projections(config), strict=True), start=1
        )
    ]
    hidden = functools.reduce(operator.mul, parts)
    hidden = constrain(dropout(hidden, 0), "batch", "length", "mlp")
    return project(config, params["wo"], hidden, dropout, 4)


def encoder_layer(
    config: T5Config,
    params: Params,
    x: jax.Array,
    mask: jax.Array | Segments,
    bias: jax.Array,
    drop: Dropout,
) -> jax.Array:
    """Applies an encoder layer to `x`, (b, length, emb)."""
    y = layer_norm(x, params["pre_attention_layer_norm"])
    key, value = keys_and_values(config, params["attention"], y, drop.at(0))
    y = attention(config, params["attention"], y, key, value, mask, bias, drop.at(0))
    x = x + drop(y, 1)

    y = layer_norm(x, params["pre_mlp_layer_norm"])
    x = x + drop(mlp(config, params["mlp"], y, drop.at(2)), 3)
    return constrain(x, "batch", "length", "embed")


def decoder_layer(
    config: T5Config,
    params: Params,
    x: jax.Array,
    self_attention: Callable[[Params, jax.Array], tuple[jax.Array, LayerState]],
    cross_attention: Callable[[Params, jax.Array], jax.Array],
    drop: Dropout,
) -> tuple[jax.Array, LayerState]:
    """Applies a decoder layer to `x`, (b, q, emb); also returns the state from `self_attention`.

    `self_attention` and `cross_attention` are called with the parameters of the attention and with
    its input, (b, q, emb). Training and decoding pass different functions.
    """
    y = layer_norm(x, params["pre_self_attention_layer_norm"])
    y, state = self_attention(params["self_attention"], y)
    x = x + drop(y, 1)

    y = layer_norm(x, params["pre_cross_attention_layer_norm"])
    x = x + drop(cross_attention(params["encoder_decoder_attention"], y), 3)

    y = layer_norm(x, params["pre_mlp_layer_norm"])
    x = x + drop(mlp(config, params["mlp"], y, drop.at(4)), 5)
    return constrain(x, "batch", "length", "embed"), state


def _run_layers(
    config: T5Config,
    layers: Params,
    layer_fn: Callable[[Params, jax.Array, jax.Array | int], jax.Array],
    x: jax.Array,
) -> jax.Array:
    """Applies `layer_fn(params, x, layer_index)` for each layer, with `lax.scan` or in a loop."""
    if config.remat_policy in ("minimal", "full"):
        policies = jax.checkpoint_policies
        minimal = policies.save_from_both_policies(
            policies.checkpoint_dots_with_no_batch_dims,
            policies.save_only_these_names(SAVED),
        )
        policy = minimal if config.remat_policy == "minimal" else None
        layer_fn = jax.checkpoint(layer_fn, policy=policy)
    if "layers" not in layers:
        for i, params in enumerate(layers_of(layers)):
            x = layer_fn(params, x, i)
        return x

    def body(x: jax.Array, xs: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
        return layer_fn(xs[0], x, xs[1]), None

    num_layers = jax.tree.leaves(layers["layers"])[0].shape[0]
    return jax.lax.scan(body, x, (layers["layers"], jnp.arange(num_layers)))[0]


def embed(config: T5Config, params: Params, tokens: jax.Array) -> jax.Array:
    """Returns the embeddings, (b, length, emb), of token ids, (b, length)."""
    table = params["token_embedder"]["embedding"].astype(config.dtype)
    # Keep entire rows on every device, because the mesh axis of `embed` also splits the batch.
    table = constrain(table, "vocab", None)
    return constrain(jnp.take(table, tokens, axis=0), "batch", "length", "embed")


def encode(
    config: T5Config,
    params: Params,
    tokens: jax.Array,
    segments: jax.Array,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """Runs the encoder on token ids; returns its output, (b, length, emb) in `config.dtype`.

    `tokens` and their segments (see `segment_mask`) have shape (b, length).
    """
    drop = Dropout(config.dropout_rate, dropout_rng)
    stack = params["encoder"]
    x = drop(embed(config, params, tokens), 1)
    mask = _mask(config, segments, segments)
    bias = _bias_of_layers(config, stack, mask, x.shape[1], bidirectional=True)

    def layer(p: Params, x: jax.Array, i: jax.Array | int) -> jax.Array:
        return encoder_layer(config, p, x, mask, bias(p), drop.at(0).at(i))

    x = _run_layers(config, stack, layer, x)
    return drop(layer_norm(x, stack["encoder_norm"]), 2, shared_axis=None)


def decode(
    config: T5Config,
    params: Params,
    encoded: jax.Array,
    encoder_segments: jax.Array,
    input_tokens: jax.Array,
    segment_ids: jax.Array,
    dropout_rng: jax.Array | None = None,
    *,
    cross_segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Runs the decoder with teacher forcing; returns its output, (b, q, emb) in `config.dtype`.

    `encoded` has shape (b, k, emb), and `encoder_segments` has shape (b, k). `input_tokens` and
    `segment_ids`, both (b, q), are the targets shifted right and their segments.
    `cross_segment_ids`, (b, q), are the encoder segments that the tokens attend to, by default
    `segment_ids`. The two differ if, for example, several answer choices share an encoder segment.
    """
    drop = Dropout(config.dropout_rate, dropout_rng)
    cross_segments = segment_ids if cross_segment_ids is None else cross_segment_ids
    cross_mask = _mask(config, cross_segments, encoder_segments)
    stack = params["decoder"]
    x = drop(embed(config, params, input_tokens), 1)
    mask = _mask(config, segment_ids, segment_ids, causal=True)
    bias_of = _bias_of_layers(config, stack, mask, x.shape[1], bidirectional=False)

    def layer(p: Params, x: jax.Array, i: jax.Array | int) -> jax.Array:
        layer_drop, bias = drop.at(0).at(i), bias_of(p)

        def self_attention(p: Params, y: jax.Array) -> tuple[jax.Array, None]:
            key, value = keys_and_values(config, p, y, layer_drop.at(0))
            return attention(config, p, y, key, value, mask, bias, layer_drop.at(0)), None

        def cross_attention(p: Params, y: jax.Array) -> jax.Array:
            key, value = keys_and_values(config, p, encoded, layer_drop.at(2))
            return attention(config, p, y, key, value, cross_mask, None, layer_drop.at(2))

        return decoder_layer(config, p, x, self_attention, cross_attention, layer_drop)[0]

    x = _run_layers(config, stack, layer, x)
    return drop(layer_norm(x, stack["decoder_norm"]), 2)


def output_kernel(config: T5Config, params: Params) -> jax.Array:
    """Returns the (emb, vocab) float32 kernel of the output projection."""
    if config.logits_via_embedding:
        return params["token_embedder"]["embedding"].T * config.emb_dim**-0.5
    return params["decoder"]["logits_dense"]["kernel"]


def logits(config: T5Config, params: Params, decoded: jax.Array) -> jax.Array:
    """Returns the float32 logits, (b, q, vocab), for decoder outputs, (b, q, emb)."""
    y = dense(decoded, output_kernel(config, params), jnp.dtype(jnp.float32))
    return constrain(y, "batch", "length", "vocab")


def segments(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the encoder and decoder segment ids of a batch, which may be packed."""
    if "encoder_segment_ids" in batch:
        return batch["encoder_segment_ids"], batch["decoder_segment_ids"]
    tokens = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
    return (tokens[0] > 0).astype(jnp.int32), (tokens[1] > 0).astype(jnp.int32)


def decoder_output(
    config: T5Config, params: Params, batch: Batch, dropout_rng: jax.Array | None = None
) -> jax.Array:
    """Runs the encoder and the decoder on a batch; returns the output, (b, target length, emb).

    See `apply` for the arguments.
    """
    rng, decoder_rng = (None, None) if dropout_rng is None else jax.random.split(dropout_rng)
    encoder_segments, decoder_segments = segments(batch)
    tokens, inputs = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    encoded = encode(config, params, tokens, encoder_segments, rng)
    return decode(config, params, encoded, encoder_segments, inputs, decoder_segments, decoder_rng)


def apply(
    config: T5Config, params: Params, batch: Batch, *, dropout_rng: jax.Array | None = None
) -> jax.Array:
    """Runs the network on a batch; returns float32 logits, (b, target length, vocab).

    A batch contains `encoder_input_tokens`, `decoder_input_tokens` and `decoder_target_tokens`, all
    (b, length) int32. A packed batch also contains `encoder_segment_ids` and `decoder_segment_ids`.
    The layers in `params` may be stacked. Dropout is disabled if `dropout_rng` is None.
    """
    return logits(config, params, decoder_output(config, params, batch, dropout_rng))
