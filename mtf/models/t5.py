"""The T5 network (Raffel et al. 2020, §2.1; Shazeer 2020).

Functions take a nested dict of float32 parameters with T5X's names; `parameters` has the name,
shape, logical axes and initialization of each. In shapes, `b` is the batch, `q` and `k` are query
and key positions, `h` heads, `d` the size of a head. The layers of a stack are `layers_0`,
`layers_1`, …; with `config.scan_layers`, a single entry `layers` (`mtf.models.stacking`).
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

from mtf.models import lora
from mtf.models.attention import SAVED, dot_product_attention
from mtf.models.settings import T5Config
from mtf.models.stacking import layers_of, stack_layers
from mtf.partitioning.mesh import constrain

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]
LayerState = TypeVar("LayerState")

LAYER_NORM_EPSILON = 1e-6


class Parameter(NamedTuple):
    """The shape, logical axes (one name per dimension) and initializer of a parameter."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


_variance_scaling = jax.nn.initializers.variance_scaling
_fan_in_normal = _variance_scaling(1.0, "fan_in", "normal")
_fan_in_truncated = _variance_scaling(1.0, "fan_in", "truncated_normal")


def parameters(config: T5Config) -> Params:
    """Returns a `Parameter` for each parameter of the network, unrolled, with T5X's names."""
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
        # T5 scales the initial query kernel instead of attention logits.
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
    """Returns a tree of `function(name, parameter)`, unrolled."""
    return jax.tree_util.tree_map_with_path(
        lambda path, parameter: function("/".join(entry.key for entry in path), parameter),
        parameters(config),
        is_leaf=lambda x: isinstance(x, Parameter),
    )


def param_shapes(config: T5Config, *, stacked: bool = False) -> Params:
    """Returns the shapes and dtypes of the parameters. Allocates nothing."""
    shapes = _map_parameters(lambda _, p: jax.ShapeDtypeStruct(p.shape, jnp.float32), config)
    return jax.eval_shape(stack_layers, shapes) if stacked else shapes


def param_axes(config: T5Config, *, stacked: bool = False) -> Params:
    """Returns the logical axes of the parameters: a tuple of names for each."""
    axes = _map_parameters(lambda _, p: p.axes, config)
    for side in ("encoder", "decoder") if stacked else ():
        layer = axes[side]["layers_0"]
        axes[side] = {k: v for k, v in axes[side].items() if not k.startswith("layers_")}
        axes[side]["layers"] = jax.tree.map(
            lambda names: ("layers", *names), layer, is_leaf=lambda x: isinstance(x, tuple)
        )
    return axes


def init_params(config: T5Config, rng: jax.Array) -> Params:
    """Returns initial parameters, unrolled. Their values depend only on `rng` and their names."""

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
    place: int = 0,
) -> jax.Array:
    """Returns `x @ kernel` of a layer's kernel with its adapter, if any (`mtf.models.lora`).

    The dropout of the adapter's input derives its key from that of `drop` at `place`.
    """
    y = dense(x, params["kernel"])
    if config.lora is None or "lora_a" not in params:
        return y
    if drop is not None:
        x = Dropout(config.lora.dropout_rate, drop.rng)(x, place, shared_axis=None)
    low = dense(dense(x, params["lora_a"]), params["lora_b"])
    return y + params["lora_scale"].astype(y.dtype) * low


def dense(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """Returns `x @ kernel`, (…, in) → (…, out), computed in `dtype`.

    Merges the leading axes, because a 2-D product has a much faster gradient on CPU.
    """
    dtype = dtype or x.dtype
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)
    return _product(rows, kernel.astype(dtype)).reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns (rows, in) @ (in, out), with a gradient of the kernel that is fast on CPUs."""
    return x @ kernel


def _product_backward(
    operands: tuple[jax.Array, jax.Array], d_y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    d_kernel = jax.lax.platform_dependent(
        x,
        d_y,
        # Copies x.T, because XLA's fastest product on CPUs takes no transposed left operand.
        cpu=lambda x, d_y: jax.lax.optimization_barrier(x.T) @ d_y,
        default=lambda x, d_y: x.T @ d_y,
    )
    return d_y @ kernel.T, d_kernel


_product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _product_backward)


def layer_norm(x: jax.Array, params: Params) -> jax.Array:
    """Returns the root-mean-square norm, without mean and bias, computed in float32."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    y = (x32 * jax.lax.rsqrt(mean_square + LAYER_NORM_EPSILON)).astype(x.dtype)
    return y * params["scale"].astype(x.dtype)


class Dropout(NamedTuple):
    """Dropout with a key, from which each place derives its own key; None turns it off."""

    rate: float
    rng: jax.Array | None

    def at(self, place: int | jax.Array) -> Dropout:
        """Returns the dropout of a layer, or of a place in a layer."""
        return self if self.rng is None else Dropout(self.rate, jax.random.fold_in(self.rng, place))

    def __call__(self, x: jax.Array, place: int, shared_axis: int | None = -2) -> jax.Array:
        """Zeroes elements of `x` with probability `rate`, and scales up the others.

        Elements along `shared_axis` (in T5X, the positions of a sequence) share one decision.
        """
        if self.rng is None or self.rate == 0.0:
            return x
        shape = list(x.shape)
        if shared_axis is not None:
            shape[shared_axis] = 1
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(jax.random.fold_in(self.rng, place), keep, tuple(shape))
        return jnp.where(kept, x / jnp.asarray(keep, x.dtype), jnp.zeros((), x.dtype))


def relative_position_bucket(
    relative_position: jax.Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
    """Returns the bucket of each `relative_position` (key position - query position).

    Half of the buckets are exact distances; the others grow logarithmically up to `max_distance`.
    In bidirectional attention, keys before and after the query each have half of the buckets.
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
    """Returns the bias of attention logits, (1, h, q, k) float32, for positions (q,) and (k,).

    `params` are those of a stack or, with `config.relpos_bias_per_layer`, of a layer.
    """
    buckets = relative_position_bucket(
        key_positions[None, :] - query_positions[:, None],
        bidirectional=bidirectional,
        num_buckets=config.relative_attention_num_buckets,
        max_distance=config.relative_attention_max_distance,
    )
    # A one-hot product, because the gradient of a gather is a slow scatter on accelerators.
    one_hot = jax.nn.one_hot(buckets.reshape(-1), config.relative_attention_num_buckets)
    bias = params["relpos_bias"]["rel_embedding"].astype(jnp.float32) @ one_hot.T  # (h, q·k)
    return bias.reshape(1, config.num_heads, *buckets.shape)


def _bias_of_layers(
    config: T5Config, stack: Params, length: int, *, bidirectional: bool
) -> Callable[[Params], jax.Array]:
    """Returns a function from a layer's parameters to its self-attention bias, (1, h, q, k)."""
    positions = jnp.arange(length)

    def bias(params: Params) -> jax.Array:
        return relpos_bias(config, params, positions, positions, bidirectional=bidirectional)

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
    """Returns keys and values, each (b, k, h, d), of `x` (b, k, emb); `drop` as in `project`."""
    key, value = (
        split_heads(config, project(config, params[name], x, drop, place))
        for place, name in ((1, "key"), (2, "value"))
    )
    return key, value


def attention(
    config: T5Config,
    params: Params,
    x: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    bias: jax.Array | None,
    dropout: Dropout,
) -> jax.Array:
    """Returns multi-head attention of queries from `x` to keys and values, (b, q, emb).

    `x` is (b, q, emb); the other arguments are those of `dot_product_attention`.
    """
    query = split_heads(config, project(config, params["query"], x, dropout, 3))
    y = dot_product_attention(query, key, value, mask, bias, dropout)
    return project(config, params["out"], y.reshape(*y.shape[:2], -1), dropout, 4)


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Returns the mask (b, 1, q, k) of keys in the query's segment; segment 0 is padding."""
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return same & (key_segments > 0)[:, None, None, :]


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def mlp(config: T5Config, params: Params, x: jax.Array, dropout: Dropout) -> jax.Array:
    """Returns the feed-forward block: the projected product of the activated projections."""
    parts = [
        _ACTIVATIONS[activation](project(config, params[name], x, dropout, place))
        for place, (activation, name) in enumerate(
            zip(config.mlp_activations, _mlp_projections(config), strict=True), start=1
        )
    ]
    hidden = functools.reduce(operator.mul, parts)
    hidden = constrain(dropout(hidden, 0), "batch", "length", "mlp")
    return project(config, params["wo"], hidden, dropout, 4)


def encoder_layer(
    config: T5Config, params: Params, x: jax.Array, mask: jax.Array, bias: jax.Array, drop: Dropout
) -> jax.Array:
    """Runs an encoder layer on (b, length, emb)."""
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
    """Runs a decoder layer on (b, q, emb); returns also the cache from `self_attention`.

    Both attentions take kernels and (b, q, emb); they differ between training and decoding.
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
    """Runs `layer_fn(params, x, layer number)` for each layer, scanned or in a loop."""
    if config.remat_policy != "none":
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
    """Returns the embeddings (b, length, emb) of ids (b, length)."""
    table = params["token_embedder"]["embedding"].astype(config.dtype)
    # Whole rows on every device, because the mesh axis of `embed` also splits the batch.
    table = constrain(table, "vocab", None)
    return constrain(jnp.take(table, tokens, axis=0), "batch", "length", "embed")


def encode(
    config: T5Config,
    params: Params,
    tokens: jax.Array,
    segment_ids: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """Runs the encoder on ids (b, length); returns (b, length, emb) in `config.dtype`.

    `segment_ids` (b, length) are the segments of packed rows; None: each row is one sequence.
    """
    drop = Dropout(config.dropout_rate, dropout_rng)
    segments = (tokens > 0).astype(jnp.int32) if segment_ids is None else segment_ids
    stack = params["encoder"]
    x = drop(embed(config, params, tokens), 1)
    x = encoder_layers(config, stack, x, segments, drop)
    return drop(layer_norm(x, stack["encoder_norm"]), 2, shared_axis=None)


def encoder_layers(
    config: T5Config, stack: Params, x: jax.Array, segments: jax.Array, drop: Dropout
) -> jax.Array:
    """Runs the layers that `stack` has on (b, length, emb), without the last norm.

    `segments` (b, length) are the segments of the tokens, 0 for padding.
    """
    mask = segment_mask(segments, segments)
    bias = _bias_of_layers(config, stack, x.shape[1], bidirectional=True)

    def layer(p: Params, x: jax.Array, i: jax.Array | int) -> jax.Array:
        return encoder_layer(config, p, x, mask, bias(p), drop.at(0).at(i))

    return _run_layers(config, stack, layer, x)


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
    """Runs the decoder on whole targets; returns (b, q, emb) in `config.dtype`.

    Shapes: `encoded` (b, k, emb), `encoder_segments` (b, k), `input_tokens` (targets shifted right)
    and `segment_ids` (b, q). `cross_segment_ids` (b, q) are the encoder segments to which tokens
    attend, by default `segment_ids`; the answer choices of an example share an encoder segment.
    """
    drop = Dropout(config.dropout_rate, dropout_rng)
    cross_segments = segment_ids if cross_segment_ids is None else cross_segment_ids
    cross_mask = segment_mask(cross_segments, encoder_segments)
    stack = params["decoder"]
    x = drop(embed(config, params, input_tokens), 1)
    x = decoder_layers(config, stack, x, segment_ids, encoded, cross_mask, drop)
    return drop(layer_norm(x, stack["decoder_norm"]), 2)


def decoder_layers(
    config: T5Config,
    stack: Params,
    x: jax.Array,
    segment_ids: jax.Array,
    encoded: jax.Array,
    cross_mask: jax.Array,
    drop: Dropout,
) -> jax.Array:
    """Runs the layers that `stack` has on (b, q, emb), without the last norm.

    Shapes: `segment_ids` (b, q), `encoded` (b, k, emb), `cross_mask` (b, 1, q, k).
    """
    positions = jnp.arange(x.shape[1])
    causal = positions[:, None] >= positions[None, :]
    mask = segment_mask(segment_ids, segment_ids) & causal
    bias_of = _bias_of_layers(config, stack, x.shape[1], bidirectional=False)

    def layer(p: Params, x: jax.Array, i: jax.Array | int) -> jax.Array:
        layer_drop, bias = drop.at(0).at(i), bias_of(p)

        def self_attention(p: Params, y: jax.Array) -> tuple[jax.Array, None]:
            key, value = keys_and_values(config, p, y, layer_drop.at(0))
            return attention(config, p, y, key, value, mask, bias, layer_drop.at(0)), None

        def cross_attention(p: Params, y: jax.Array) -> jax.Array:
            key, value = keys_and_values(config, p, encoded, layer_drop.at(2))
            return attention(config, p, y, key, value, cross_mask, None, layer_drop.at(2))

        return decoder_layer(config, p, x, self_attention, cross_attention, layer_drop)[0]

    return _run_layers(config, stack, layer, x)


def output_kernel(config: T5Config, params: Params) -> jax.Array:
    """Returns the (emb, vocab) float32 kernel of the output projection."""
    if config.logits_via_embedding:
        return params["token_embedder"]["embedding"].T * config.emb_dim**-0.5
    return params["decoder"]["logits_dense"]["kernel"]


def logits(config: T5Config, params: Params, decoded: jax.Array) -> jax.Array:
    """Returns float32 logits (b, q, vocab) of the decoder's output (b, q, emb)."""
    y = dense(decoded, output_kernel(config, params), jnp.dtype(jnp.float32))
    return constrain(y, "batch", "length", "vocab")


def segments(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns the encoder and decoder segment ids of a batch, packed or not."""
    if "encoder_segment_ids" in batch:
        return batch["encoder_segment_ids"], batch["decoder_segment_ids"]
    tokens = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
    return (tokens[0] > 0).astype(jnp.int32), (tokens[1] > 0).astype(jnp.int32)


def decoder_output(
    config: T5Config, params: Params, batch: Batch, dropout_rng: jax.Array | None = None
) -> jax.Array:
    """Runs encoder and decoder on a batch of `apply`; returns (b, target length, emb)."""
    rng, decoder_rng = (None, None) if dropout_rng is None else jax.random.split(dropout_rng)
    encoder_segments, decoder_segments = segments(batch)
    tokens, inputs = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    encoded = encode(config, params, tokens, encoder_segments, rng)
    return decode(config, params, encoded, encoder_segments, inputs, decoder_segments, decoder_rng)


def apply(
    config: T5Config, params: Params, batch: Batch, *, dropout_rng: jax.Array | None = None
) -> jax.Array:
    """Runs the network on a batch; returns float32 logits (b, target length, vocab).

    A batch has `encoder_input_tokens`, `decoder_input_tokens`, `decoder_target_tokens`, each
    (b, length) int32; and, if packed, `encoder_segment_ids` and `decoder_segment_ids`. Parameters
    are unrolled or stacked; `dropout_rng` None turns dropout off.
    """
    return logits(config, params, decoder_output(config, params, batch, dropout_rng))
