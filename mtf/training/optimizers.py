"""Applies Adafactor and AdamW to a tree of parameters.

The state of these optimizers is nested like the parameters and has a dict of slots for each
parameter. `mtf.training.transformations` applies all other optax optimizers.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

from mtf.models.stacking import Tree
from mtf.training import adafactor, transformations
from mtf.training.settings import AdafactorConfig, AdamWConfig, AnyOptimizer


def init(config: AnyOptimizer, params: Tree, axes: Tree) -> Tree:
    """Returns the initial optimizer state; `axes` are the logical axes of `params`."""
    if not isinstance(config, AdafactorConfig | AdamWConfig):
        return transformations.init(config, params)
    if isinstance(config, AdamWConfig):
        return _slots(_adam(config).init(params))
    return jax.tree.map(
        lambda names, param: adafactor.init_slots(config, param, names),
        axes,
        params,
        is_leaf=is_axes,
    )


def update(
    config: AdafactorConfig | AdamWConfig,
    step: jax.Array,
    learning_rate: jax.Array,
    grads: Tree,
    params: Tree,
    states: Tree,
    axes: Tree,
) -> tuple[Tree, Tree]:
    """Returns the updated parameters and state; `step` is the number of previous updates."""
    if isinstance(config, AdafactorConfig):
        pairs = jax.tree.map(
            lambda names, param, slots, grad: adafactor.update_param(
                config, step, learning_rate, param, slots, grad, names
            ),
            axes,
            params,
            states,
            grads,
            is_leaf=is_axes,
        )
        new_params = jax.tree.map(lambda _, pair: pair[0], axes, pairs, is_leaf=is_axes)
        return new_params, jax.tree.map(lambda _, pair: pair[1], axes, pairs, is_leaf=is_axes)

    mu = jax.tree.map(lambda _, slots: slots["mu"], params, states)
    nu = jax.tree.map(lambda _, slots: slots["nu"], params, states)
    updates, state = _adam(config).update(grads, optax.ScaleByAdamState(step, mu, nu))
    decay = config.weight_decay_rate

    def new(names: tuple[str, ...], param: jax.Array, update: jax.Array) -> jax.Array:
        # Norm scales, the only parameters of T5 that are not matrices, have no weight decay.
        decayed = decay and len([name for name in names if name != "layers"]) >= 2
        return param - learning_rate * (update + (decay * param if decayed else 0.0))

    params = jax.tree.map(new, axes, params, updates, is_leaf=is_axes)
    return params, _slots(state)


def _adam(config: AdamWConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)


def _slots(state: Any) -> Tree:
    return jax.tree.map(lambda mu, nu: {"mu": mu, "nu": nu}, state.mu, state.nu)


def is_axes(x: object) -> bool:
    """Returns whether `x` is a tuple of logical axes, which is a leaf in a tree of axes."""
    return isinstance(x, tuple)
