"""Adafactor with T5X's semantics (Shazeer & Stern 2018; T5X: `adafactor.py`).

The state of a parameter has the same four slots as in T5X. `v_row` and `v_col` contain the row and
column means of a factored second moment, `v` contains a second moment that is not factored, and
`m` contains the first moment. Unused slots are arrays of zeros with shape (1,).

The layers of a stacked parameter (whose first logical axis is "layers") are updated separately, so
that training gives the same results with scanned and with unrolled layers. For a matrix,
`optax.scale_by_factored_rms` gives the same results, but it treats a deep stack of norm scales as a
matrix. T5X's logical factor rules are for parameters of higher rank, which T5 does not have.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from mtf.training.settings import AdafactorConfig

# On CPUs, with this many columns or more, a product with ones is faster than XLA's sum over rows.
_WIDE = 2**14

Axes = tuple[str, ...]
Slots = dict[str, jax.Array]


def _own_dims(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """Returns all dimensions of a parameter except that of stacked layers."""
    return tuple(range(int(axes[:1] == ("layers",)), len(shape)))


def _factored(
    config: AdafactorConfig, shape: tuple[int, ...], axes: Axes
) -> tuple[int, int] | None:
    """Returns the dimensions that `v_row` and `v_col` keep; None if there is no factoring.

    A matrix is factored if the sizes of both dimensions are at least `min_dim_size_to_factor`.
    """
    dims = _own_dims(shape, axes)
    if not config.factored or len(dims) != 2:
        return None
    row, column = sorted(dims, key=lambda dim: shape[dim])
    return (row, column) if shape[row] >= config.min_dim_size_to_factor else None


def init_slots(config: AdafactorConfig, param: Any, axes: Axes) -> Slots:
    """Returns the initial slots of a parameter; `axes` are its logical axes."""
    factored = _factored(config, param.shape, axes)
    stack = param.shape[:1] if axes[:1] == ("layers",) else ()
    slots = {name: jnp.zeros((*stack, 1), jnp.float32) for name in ("m", "v", "v_col", "v_row")}
    if factored is not None:
        for name, dim in zip(("v_row", "v_col"), factored, strict=True):
            slots[name] = jnp.zeros((*stack, param.shape[dim]), jnp.float32)
    else:
        slots["v"] = jnp.zeros(param.shape, jnp.float32)
    if config.beta1 is not None:
        slots["m"] = jnp.zeros(param.shape, jnp.float32)
    return slots


def mean_square(x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    """Returns `jnp.mean(jnp.square(x), dims)`.

    On CPUs, a wide matrix is summed over its rows by multiplying a vector of ones by the matrix.
    For the logits kernel, XLA's sum takes 50 times as long.
    """

    def plain(x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(x), axis=dims)

    def product(x: jax.Array) -> jax.Array:
        return jnp.ones(x.shape[0], x.dtype) @ jnp.square(x) / x.shape[0]

    if x.ndim != 2 or dims != (0,) or x.shape[1] < _WIDE:
        return plain(x)
    return jax.lax.platform_dependent(x, cpu=product, default=plain)


def _rms(x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.expand_dims(mean_square(x, dims), dims))


def update_param(
    config: AdafactorConfig,
    step: jax.Array,
    learning_rate: jax.Array,
    param: jax.Array,
    slots: Slots,
    grad: jax.Array,
    axes: Axes,
) -> tuple[jax.Array, Slots]:
    """Returns the updated parameter, in float32, and its updated slots.

    `step` is the number of previous updates. `slots` is the result of `init_slots` or of the
    previous update.
    """
    dims, factored = _own_dims(param.shape, axes), _factored(config, param.shape, axes)
    age = (step - config.step_offset + 1).astype(jnp.float32)
    keep = 1.0 - age ** (-config.decay_rate)
    grad = grad.astype(jnp.float32)
    slots = dict(slots)
    if factored is not None:
        row, column = factored
        mean_of_columns = mean_square(grad, (column,)) + config.epsilon1
        mean_of_rows = mean_square(grad, (row,)) + config.epsilon1
        v_row = keep * slots["v_row"] + (1.0 - keep) * mean_of_columns
        v_col = keep * slots["v_col"] + (1.0 - keep) * mean_of_rows
        slots.update(v_row=v_row, v_col=v_col)
        v_row = jnp.expand_dims(v_row, column)
        row_mean = jnp.mean(v_row, axis=row, keepdims=True)
        y = grad * (v_row / row_mean) ** -0.5 * jnp.expand_dims(v_col, row) ** -0.5
    else:
        squared = jnp.square(grad) + config.epsilon1
        slots["v"] = keep * slots["v"] + (1.0 - keep) * squared
        y = grad * slots["v"] ** -0.5

    if config.clipping_threshold is not None:
        y = y / jnp.maximum(1.0, _rms(y, dims) / config.clipping_threshold)
    scale = learning_rate
    if config.multiply_by_parameter_scale:
        scale = scale * jnp.maximum(_rms(param, dims), config.epsilon2)
    update = scale * y
    if config.beta1 is not None:
        update = config.beta1 * slots["m"] + (1.0 - config.beta1) * update
        slots["m"] = update
    decay: jax.Array | float = config.weight_decay_rate or 0.0
    if config.weight_decay_rate_lr_exponent:
        decay = config.weight_decay_rate or 1.0
        decay = decay * learning_rate**config.weight_decay_rate_lr_exponent
    return (1.0 - decay) * param - update, slots
