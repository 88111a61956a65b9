"""The optimizers behind one interface: Adafactor, and AdamW from optax.

The state is one tree nested like the parameters, with a dict of slots for each parameter.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import optax

from mtf.models.stacking import Tree
from mtf.training import adafactor
from mtf.training.settings import AdafactorConfig, AdamWConfig


class Optimizer(Protocol):
    """What the trainer asks of an optimizer."""

    def init(self, params: Tree) -> Tree:
        """Returns the state before the first step."""
        ...

    def update(
        self, step: jax.Array, learning_rate: jax.Array, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        """New parameters and new state."""
        ...


def is_axes(x: object) -> bool:
    """Returns whether `x` is the tuple of one parameter's logical axes."""
    return isinstance(x, tuple)


def make_optimizer(config: AdafactorConfig | AdamWConfig, axes: Tree) -> Optimizer:
    """Returns the optimizer for parameters whose logical axes are `axes`."""
    if isinstance(config, AdafactorConfig):
        return Adafactor(config, axes)
    return AdamW(config, axes)


class Adafactor:
    """Adafactor, parameter by parameter."""

    def __init__(self, config: AdafactorConfig, axes: Tree) -> None:
        self.config = config
        self.axes = axes

    def init(self, params: Tree) -> Tree:
        """T5X's slots for every parameter."""
        return jax.tree.map(
            lambda axes, param: adafactor.init_slots(self.config, param, axes),
            self.axes,
            params,
            is_leaf=is_axes,
        )

    def update(
        self, step: jax.Array, learning_rate: jax.Array, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        """New parameters and new slots."""
        both = jax.tree.map(
            lambda axes, param, slots, grad: adafactor.update_param(
                self.config, step, learning_rate, param, slots, grad, axes
            ),
            self.axes,
            params,
            states,
            grads,
            is_leaf=is_axes,
        )
        return _unzip(both)


class AdamW:
    """AdamW: optax's first and second moments under the slots `mu` and `nu`."""

    def __init__(self, config: AdamWConfig, axes: Tree) -> None:
        self.config = config
        self._adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
        # Norms' scales are not decayed; everything else in T5 is a matrix.
        self._decayed = jax.tree.map(_is_matrix, axes, is_leaf=is_axes)

    def init(self, params: Tree) -> Tree:
        """Zero moments."""
        state = self._adam.init(params)
        return jax.tree.map(lambda mu, nu: {"mu": mu, "nu": nu}, state.mu, state.nu)

    def update(
        self, step: jax.Array, learning_rate: jax.Array, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        """New parameters and new moments."""
        mu = jax.tree.map(lambda _, slots: slots["mu"], params, states)
        nu = jax.tree.map(lambda _, slots: slots["nu"], params, states)
        state = optax.ScaleByAdamState(count=step, mu=mu, nu=nu)
        updates, state = self._adam.update(grads, state)
        decay = self.config.weight_decay_rate

        def new(param: jax.Array, update: jax.Array, decayed: bool) -> jax.Array:
            return param - learning_rate * (update + (decay * param if decay and decayed else 0.0))

        params = jax.tree.map(new, params, updates, self._decayed)
        states = jax.tree.map(lambda m, n: {"mu": m, "nu": n}, state.mu, state.nu)
        return params, states


def _is_matrix(axes: tuple[str, ...]) -> bool:
    return len([name for name in axes if name != "layers"]) >= 2


def _unzip(pairs: Tree) -> tuple[Tree, Tree]:
    def is_pair(x: object) -> bool:
        return isinstance(x, tuple)

    return (
        jax.tree.map(lambda pair: pair[0], pairs, is_leaf=is_pair),
        jax.tree.map(lambda pair: pair[1], pairs, is_leaf=is_pair),
    )


def slot_axes(
    param_axes: tuple[str, ...], param_shape: tuple[int, ...], slot: Any
) -> tuple[Any, ...]:
    """Logical axes of a slot: the parameter's where it has its shape, else none."""
    return param_axes if tuple(slot.shape) == tuple(param_shape) else (None,) * len(slot.shape)
