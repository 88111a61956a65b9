"""Attention with T5's relative position bias as Pallas kernels for TPUs.

The kernels keep the logits, the weights, the mask and the bias of a block of queries and a block of
keys in the memory of the chip (VMEM). They compute the softmax block by block, and the backward
pass recomputes the weights (FlashAttention, arxiv.org/abs/2205.14135).

In shapes, b, q, k, h and d are those of `mtf.models.t5`. Queries, keys and values have the layout
of the projections, (b, length, h·d). A kernel reads 128 columns at a time, which are a group of
n = 128 / d heads; there are g = h / n groups. In the kernels, logits have the shape (keys,
queries), so that the softmax sums over columns.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from mtf.base.errors import UserError
from mtf.models.attention import MASKED, SAVED, dot_product_attention
from mtf.models.settings import T5Config
from mtf.models.types import Dropout
from mtf.partitioning.mesh import activation_spec, current_platform

Arrays = dict[str, jax.Array]

LANES = 128  # the number of columns of a TPU's registers
_SUBLANES = 8  # the number of their rows
_MAX_BLOCK = 512  # the largest number of queries or keys in a block
_QUERIES = ("query", "y", "d_y", "d_query")  # arrays (b, q, h·d)
_KEYS = ("key", "value", "d_key", "d_value")  # arrays (b, k, h·d)
_TOLERANCE = 0.03  # the largest difference from the formula, relative to the largest value


def is_used(config: T5Config, num_queries: int, num_keys: int) -> bool:
    """Returns whether attention uses the kernels; this depends on the devices of the current mesh.

    If `config.attention` is "auto", TPUs use the kernels for the shapes that they support. Before
    their first use on a TPU, the kernels are compared with the formula.

    Raises UserError if `config.attention` is "pallas" and the kernels do not support the platform
    or the shapes.
    """
    platform, wanted = current_platform(), config.attention
    if wanted == "xla" or (wanted == "auto" and platform != "tpu"):
        return False
    groups, rest = divmod(config.num_heads * config.head_dim, LANES)
    problem = ""
    if platform not in ("tpu", "cpu"):
        problem = f"a TPU, or a CPU for tests, not the platform {platform!r}"
    elif config.head_dim not in (64, LANES):
        problem = f"head_dim to be 64 or 128, not {config.head_dim}"
    elif rest or activation_spec((groups,), "heads") != activation_spec((0,), "heads"):
        size = f"num_heads × head_dim ({config.num_heads * config.head_dim})"
        problem = f"{size} to be a multiple of 128 on each device of the mesh's model axis"
    elif num_queries % LANES or num_keys % LANES:
        problem = f"lengths that are multiples of 128, not {num_queries} and {num_keys}"
    if wanted == "pallas" and problem:
        raise UserError(
            f"model.network.attention='pallas' requires {problem}. Use 'auto', which uses the "
            "kernels only where they are supported, or 'xla'."
        )
    if problem or wanted == "pallas" or jax.default_backend() != "tpu":
        return not problem  # The backend is another one if the program is only compiled.
    return _is_right(config.head_dim, config.dtype)


@functools.cache
def _is_right(head_dim: int, dtype: str) -> bool:
    """Compares the kernels with the formula on a TPU of this process; prints if they differ."""
    # In another thread, neither the mesh nor the trace of the caller is in force.
    with ThreadPoolExecutor(1) as pool:
        problem = pool.submit(_problem, head_dim, dtype).result()
    if problem:
        print(f"The attention kernels are not used, because {problem}.", file=sys.stderr)
    return not problem


def _problem(head_dim: int, dtype: str) -> str:
    """Returns how the kernels fail on a small random input; an empty string if they are right."""
    batch, length, width, segment = 2, 256, 2 * LANES, 100
    rng = np.random.default_rng(0)
    shapes = [(batch, length, width)] * 4
    query, key, value, d_y = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    bias = jnp.asarray(rng.normal(size=(width // head_dim, 2 * length)), jnp.float32)
    inputs = query * head_dim**-0.5, key, value, bias
    positions = np.arange(length)
    segments = jnp.broadcast_to((positions // segment + 1) % 3, (batch, length))
    causal = positions[:, None] >= positions
    distances = positions[:, None] - positions + length - 1

    def kernels(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array) -> jax.Array:
        rows = bias_rows(bias, head_dim, causal=True)
        return flash_attention(query, key, value, segments, segments, rows, None, head_dim)

    def formula(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array) -> jax.Array:
        query, key, value = (x.reshape(batch, length, -1, head_dim) for x in (query, key, value))
        is_same = segments[:, :, None] == segments[:, None]
        mask = (is_same & (segments > 0)[:, None] & causal)[:, None]
        matrix = bias[None, :, distances]
        y = dot_product_attention(query, key, value, mask, matrix, Dropout(0.0, None))
        return y.reshape(batch, length, -1)

    @functools.partial(jax.jit, static_argnums=0)
    def with_gradients(attend: Any, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        y, pull = jax.vjp(attend, *inputs)
        return y, *pull(d_y)

    try:
        found = with_gradients(kernels, *inputs)
    except Exception as error:
        return f"they do not compile ({str(error).splitlines()[0]})"
    for x, expected in zip(found, with_gradients(formula, *inputs), strict=True):
        x, expected = x.astype(jnp.float32), expected.astype(jnp.float32)
        if not jnp.max(jnp.abs(x - expected)) <= _TOLERANCE * jnp.max(jnp.abs(expected)):
            return "their results differ from those of the formula"
    return ""


def bias_rows(bias: jax.Array, head_dim: int, *, causal: bool) -> jax.Array:
    """Returns a bias as the kernels read it, (g, n, 8, q + k) float32.

    At index i, `bias`, (h, q + k) float32, contains the bias of keys that are k - 1 - i positions
    after the query. The result contains it 8 times, each time rotated by another number. If
    `causal` is set, keys after the query are masked. This requires that q = k, and that the query
    and the key at a position are in the same segment.
    """
    if causal:
        is_seen = jnp.arange(bias.shape[1]) >= bias.shape[1] // 2 - 1
        bias = jnp.where(is_seen, bias, MASKED)
    rows = jnp.stack([jnp.roll(bias, r + 1 - _SUBLANES, axis=1) for r in range(_SUBLANES)], axis=1)
    return rows.reshape(-1, LANES // head_dim, *rows.shape[1:])


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    bias: jax.Array | None,
    scales: jax.Array | None,
    head_dim: int,
) -> jax.Array:
    """Returns the attention output for each query, (b, q, h·d).

    A query attends to the keys of its segment, or equally to all keys if there are none. Segment 0
    of the keys is padding. If there is a current mesh, each device computes the part of the
    output that belongs to its rows of the batch and its heads. On other platforms than TPUs, the
    kernels are interpreted, which is slow.

    Args:
      query: (b, q, h·d); q and h·d are multiples of 128.
      key: (b, k, h·d); k is a multiple of 128.
      value: (b, k, h·d).
      query_segments: (b, q) int32, not negative.
      key_segments: (b, k) int32.
      bias: the result of `bias_rows`, or None.
      scales: (b, h, k) float32, by which weights are multiplied after the softmax (dropout), or
        None.
      head_dim: 64 or 128.
    """
    operands = {
        "query": query,
        "key": key,
        "value": value,
        "query_segments": query_segments[:, None],
        "key_segments": jnp.where(key_segments > 0, key_segments, -1)[:, None],
    }
    operands |= {} if bias is None else {"bias": bias}
    if scales is not None:
        heads = LANES // head_dim
        operands["scales"] = scales.reshape(len(scales), -1, heads, scales.shape[2])
    return _attend(operands, head_dim)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attend(operands: Arrays, head_dim: int) -> jax.Array:
    return _attend_forward(operands, head_dim)[0]


def _attend_forward(operands: Arrays, head_dim: int) -> tuple[jax.Array, Arrays]:
    results = _run(operands, ("y", "sums"), head_dim)
    operands = operands | {name: checkpoint_name(x, SAVED) for name, x in results.items()}
    return operands["y"], operands


def _attend_backward(
    head_dim: int, operands: Arrays, d_y: jax.Array
) -> tuple[dict[str, jax.Array | None]]:
    names = [f"d_{name}" for name in ("query", "key", "value", "bias") if name in operands]
    results = _run({**operands, "d_y": d_y}, names, head_dim)
    return ({name: results.get(f"d_{name}") for name in operands if name not in ("y", "sums")},)


_attend.defvjp(_attend_forward, _attend_backward)


def _run(operands: Arrays, names: Sequence[str], head_dim: int) -> Arrays:
    """Returns the results of a kernel that have the given names; uses the current mesh, if any.

    These are `y`, the output, and `sums`, (b, g, 2n, q) float32, or gradients. For each query,
    `sums` contains the largest logit of each head of a group, and then the sum of the exponentials
    of the differences of the logits from the largest.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return _run_here(operands, names, head_dim)
    batch_size, _, width = operands["query"].shape
    batch, groups = activation_spec((batch_size, width // LANES), "batch", "heads")
    specs = dict.fromkeys((*_QUERIES, *_KEYS), PartitionSpec(batch, None, groups))
    specs |= dict.fromkeys(("query_segments", "key_segments"), PartitionSpec(batch))
    specs |= dict.fromkeys(("bias", "d_bias"), PartitionSpec(groups))
    specs |= dict.fromkeys(("sums", "scales"), PartitionSpec(batch, groups))

    def on_device(operands: Arrays) -> Arrays:
        results = _run_here(operands, names, head_dim)
        if "d_bias" in results and batch is not None:
            results["d_bias"] = jax.lax.psum(results["d_bias"], batch)
        return results

    in_specs = ({name: specs[name] for name in operands},)
    out_specs = {name: specs[name] for name in names}
    mapped = jax.shard_map(on_device, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    results: Arrays = mapped(operands)
    return results


def _block(length: int) -> int:
    """Returns the largest multiple of 128, up to `_MAX_BLOCK`, that divides `length`."""
    return next(n for n in range(_MAX_BLOCK, 0, -LANES) if length % n == 0)


def _run_here(operands: Arrays, names: Sequence[str], head_dim: int) -> Arrays:
    """Returns the results of a kernel on one device; see `_run`.

    The grid consists of the groups of heads, the rows of the batch, the blocks of queries, and, in
    the innermost loop, the blocks of keys.
    """
    kernel, num_products = (_backward_kernel, 5) if "d_y" in operands else (_forward_kernel, 2)
    (batch, num_queries, width), num_keys = operands["query"].shape, operands["key"].shape[1]
    columns, rows, heads = _block(num_queries), _block(num_keys), LANES // head_dim
    last, bias = num_queries // columns - 1, (1, heads, _SUBLANES, num_queries + num_keys)
    of_keys = pl.BlockSpec((1, rows, LANES), lambda g, b, i, j: (b, j, g))
    # The gradients of keys are complete, and are written, in the last block of queries.
    written_last = pl.BlockSpec(
        (1, rows, LANES), lambda g, b, i, j: (b, jnp.where(i == last, j, 0), g)
    )
    specs = {
        **dict.fromkeys(_QUERIES, pl.BlockSpec((1, columns, LANES), lambda g, b, i, j: (b, i, g))),
        **{"key": of_keys, "value": of_keys, "d_key": written_last, "d_value": written_last},
        "query_segments": pl.BlockSpec((1, 1, columns), lambda g, b, i, j: (b, 0, i)),
        "key_segments": pl.BlockSpec((1, 1, rows), lambda g, b, i, j: (b, 0, j)),
        "sums": pl.BlockSpec((1, 1, 2 * heads, columns), lambda g, b, i, j: (b, g, 0, i)),
        "scales": pl.BlockSpec((1, 1, heads, rows), lambda g, b, i, j: (b, g, 0, j)),
        **dict.fromkeys(("bias", "d_bias"), pl.BlockSpec(bias, lambda g, b, i, j: (g, 0, 0, 0))),
    }
    sums = jax.ShapeDtypeStruct((batch, width // LANES, 2 * heads, num_queries), jnp.float32)
    like: dict[str, Any] = {f"d_{name}": x for name, x in operands.items()}
    like |= {"y": operands["query"], "sums": sums}
    results = {name: jax.ShapeDtypeStruct(like[name].shape, like[name].dtype) for name in names}
    scratch = {"sum": (LANES, columns)}
    if "d_y" in operands:
        scratch |= dict.fromkeys(("key_sum", "value_sum"), (num_keys, LANES))
    # The gradient of the bias is summed over the rows of the batch.
    rows_axis = pltpu.ARBITRARY if "d_bias" in names else pltpu.PARALLEL
    refs = (*operands, *results, *scratch)
    num_logits = batch * num_queries * num_keys * width // head_dim
    arrays: list[Any] = [*operands.values(), *results.values()]
    found = pl.pallas_call(
        lambda *each: kernel(types.SimpleNamespace(**dict(zip(refs, each, strict=True))), heads),
        grid=(width // LANES, batch, num_queries // columns, num_keys // rows),
        in_specs=[specs[name] for name in operands],
        out_specs=[specs[name] for name in results],
        out_shape=list(results.values()),
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, rows_axis, pltpu.ARBITRARY, pltpu.ARBITRARY)
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * num_products * num_logits * head_dim,
            transcendentals=num_logits,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
        ),
        interpret=current_platform() != "tpu",
        name=f"t5_attention{kernel.__name__.removesuffix('_kernel')}",
    )(*operands.values())
    return dict(zip(results, found, strict=True))


def _forward_kernel(refs: Any, heads: int) -> None:
    j, size = pl.program_id(3), LANES // heads

    @pl.when(j == 0)
    def _() -> None:
        refs.sum[...] = jnp.zeros_like(refs.sum)
        refs.sums[0, 0, :heads] = jnp.full((heads, refs.sum.shape[1]), -jnp.inf)
        refs.sums[0, 0, heads:] = jnp.zeros((heads, refs.sum.shape[1]))

    mask, value = _mask(refs), _scaled(refs, refs.value[0], heads)
    for head in range(heads):
        top, total = pl.ds(head, 1), pl.ds(heads + head, 1)
        rows = slice(head * size, (head + 1) * size)
        logits = _logits(refs, head, heads, mask)
        before = refs.sums[0, 0, top]
        largest = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
        weights = jnp.exp(logits - largest)
        scale = jnp.exp(before - largest)
        new = _product(value, weights.astype(value.dtype), (0, 0))  # (128, queries)
        refs.sum[rows] = refs.sum[rows] * scale + new[rows]
        refs.sums[0, 0, top] = largest
        weight = jnp.sum(weights, axis=0, keepdims=True)
        refs.sums[0, 0, total] = refs.sums[0, 0, total] * scale + weight

    @pl.when(j == pl.num_programs(3) - 1)
    def _() -> None:
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            refs.sum[rows] /= refs.sums[0, 0, pl.ds(heads + head, 1)]
        refs.y[0] = refs.sum[...].T.astype(refs.y.dtype)


def _backward_kernel(refs: Any, heads: int) -> None:
    b, i, j = (pl.program_id(axis) for axis in (1, 2, 3))
    last_i, last_j = pl.num_programs(2) - 1, pl.num_programs(3) - 1
    size, has_bias = LANES // heads, hasattr(refs, "bias")
    query, key, d_y = refs.query[0], refs.key[0], refs.d_y[0]
    value = _scaled(refs, refs.value[0], heads)
    keys = pl.ds(pl.multiple_of(j * len(key), LANES), len(key))

    @pl.when(j == 0)
    def _() -> None:
        refs.sum[...] = jnp.zeros_like(refs.sum)

    @pl.when(i == 0)
    def _() -> None:
        refs.key_sum[keys] = jnp.zeros(key.shape, jnp.float32)
        refs.value_sum[keys] = jnp.zeros(key.shape, jnp.float32)

    if has_bias:

        @pl.when((b == 0) & (i == 0) & (j == 0))
        def _() -> None:
            refs.d_bias[...] = jnp.zeros_like(refs.d_bias)

    mask = _mask(refs)
    means = (d_y.astype(jnp.float32) * refs.y[0].astype(jnp.float32)).T  # (128, queries)
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        largest, total = (refs.sums[0, 0, pl.ds(at, 1)] for at in (head, heads + head))
        weights = jnp.exp(_logits(refs, head, heads, mask) - largest) * (1.0 / total)
        own_query, own_d_y = (_only(head, x, heads) for x in (query, d_y))
        refs.value_sum[keys] += _product(weights.astype(d_y.dtype), own_d_y, (1, 0))
        d_weights = _product(value, own_d_y, (1, 1))
        mean = jnp.sum(means[rows], axis=0, keepdims=True)
        d_logits = jnp.where(mask, weights * (d_weights - mean), 0.0)
        if has_bias:
            refs.d_bias[0, head, :, _bias_columns(refs)] += _sum_diagonals(d_logits)
        d_logits = d_logits.astype(query.dtype)
        refs.key_sum[keys] += _product(d_logits, own_query, (1, 0))
        refs.sum[rows] += _product(key, d_logits, (0, 0))[rows]

    @pl.when(j == last_j)
    def _() -> None:
        refs.d_query[0] = refs.sum[...].T.astype(refs.d_query.dtype)

    @pl.when(i == last_i)
    def _() -> None:
        refs.d_key[0] = refs.key_sum[keys].astype(refs.d_key.dtype)
        d_value = _scaled(refs, refs.value_sum[keys], heads)
        refs.d_value[0] = d_value.astype(refs.d_value.dtype)


def _mask(refs: Any) -> jax.Array:
    """Returns a mask, (keys, queries), that is True where a query and a key share a segment."""
    row, num_queries = refs.key_segments[0], refs.query_segments.shape[2]
    column = jnp.broadcast_to(row, (LANES, row.shape[1])).T  # (keys, 128)
    return jnp.tile(column, (1, num_queries // LANES)) == refs.query_segments[0]


def _scaled(refs: Any, x: jax.Array, heads: int) -> jax.Array:
    """Returns `x`, (keys, 128), multiplied by the scales of the keys in each head."""
    if not hasattr(refs, "scales"):
        return x
    shape = LANES // heads, len(x)
    rows = (jnp.broadcast_to(refs.scales[0, 0, pl.ds(head, 1)], shape) for head in range(heads))
    return (x * jnp.concatenate(list(rows)).T).astype(x.dtype)


def _logits(refs: Any, head: int, heads: int, mask: jax.Array) -> jax.Array:
    """Returns the logits of a head, (keys, queries) float32."""
    logits = _product(refs.key[0], _only(head, refs.query[0], heads), (1, 1))
    if hasattr(refs, "bias"):
        logits += _diagonals(refs.bias[0, head, :, _bias_columns(refs)], len(logits))
    return jnp.where(mask, logits, MASKED)


def _only(head: int, x: jax.Array, heads: int) -> jax.Array:
    """Returns `x`, (rows, 128), with zeros in the columns of other heads."""
    column = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return x if heads == 1 else jnp.where(column // (LANES // heads) == head, x, jnp.zeros_like(x))


def _product(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Returns the float32 product of two matrices, which sums over the given axis of each."""
    dims = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)


def _bias_columns(refs: Any) -> Any:
    """Returns the part of the bias that belongs to the current blocks of queries and keys."""
    num_queries, num_keys = refs.query.shape[1], refs.key.shape[1]
    last = pl.num_programs(3) - 1
    start = pl.program_id(2) * num_queries + (last - pl.program_id(3)) * num_keys
    return pl.ds(pl.multiple_of(start, LANES), num_queries + num_keys)


def _diagonals(rows: jax.Array, num_keys: int) -> jax.Array:
    """Returns y[r, c] = w[c - r + keys - 1], (keys, queries), from rows[r, c] = w[c - r + 7].

    `rows` has the shape (8, queries + keys). The first half of twice as many rows is the second
    half rotated by its number of rows; a rotation by a multiple of 128 only renames registers. (A
    single rotation by a different number in each row exists on TPUs v5 and later, but not on v4.)
    """
    width = rows.shape[1]
    while len(rows) < LANES:
        rows = jnp.concatenate([pltpu.roll(rows, width - len(rows), 1), rows])
    starts = range(num_keys - LANES, -1, -LANES)
    return jnp.concatenate([rows[:, at : at + width - num_keys] for at in starts])


def _sum_diagonals(x: jax.Array) -> jax.Array:
    """Returns the gradient of `rows`, (8, queries + keys), from that of the result of `_diagonals`.

    The sum over the 8 rows, each rotated, is the sum of each diagonal.
    """
    num_keys = len(x)
    zeros = jnp.zeros((LANES, num_keys), x.dtype)
    starts = range(0, num_keys, LANES)
    parts = (jnp.concatenate([x[at : at + LANES], zeros], axis=1) for at in starts)
    shifts = (num_keys - LANES - at for at in starts)
    rows = functools.reduce(jnp.add, map(pltpu.roll, parts, shifts, itertools.repeat(1)))
    while (half := len(rows) // 2) >= _SUBLANES:
        rows = pltpu.roll(rows[:half], half, 1) + rows[half:]
    return rows
