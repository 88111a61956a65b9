"""Adafactor, and AdamW from optax, on the whole tree of parameters.

The state is nested like the parameters, with a dict of slots for each parameter.
"""

from __future__ import annotations

import jax
import optax

from mtf.models.stacking import Tree
from mtf.training import adafactor
from mtf.training.settings import AdafactorConfig, AdamWConfig


def init(config: AdafactorConfig | AdamWConfig, params: Tree, axes: Tree) -> Tree:
    """Returns the state of parameters, with these logical axes, before the first step."""
    if isinstance(config, AdamWConfig):
        state = _adam(config).init(params)
        return _slots(state.mu, state.nu)
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
    """Returns new parameters and new state; `step` is the number of updates made so far."""
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
        # Scales of norms are not decayed; everything else in T5 is a matrix.
        decayed = decay and len([name for name in names if name != "layers"]) >= 2
        return param - learning_rate * (update + (decay * param if decayed else 0.0))

    params = jax.tree.map(new, axes, params, updates, is_leaf=is_axes)
    return params, _slots(state.mu, state.nu)


def _adam(config: AdamWConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)


def _slots(mu: Tree, nu: Tree) -> Tree:
    return jax.tree.map(lambda m, n: {"mu": m, "nu": n}, mu, nu)


def is_axes(x: object) -> bool:
    """Returns whether `x` is the tuple of one parameter's logical axes."""
    return isinstance(x, tuple)
