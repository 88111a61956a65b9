"""Applies optimizers to trees of parameters (T5X: `optimizers.OptimizerDef`).

`create` is the only function that depends on the type of an optimizer's settings. The classes have
the methods of `Transformation`, whose arguments and results are nested dicts. The state of
Adafactor and AdamW is nested like the parameters and has a dict of slots for each parameter; that
of optax's optimizers is described in `mtf.training.transformations`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import optax

from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.models.trees import Tree
from mtf.training import adafactor
from mtf.training.settings import (
    AdafactorConfig,
    AdamWConfig,
    AnyOptimizer,
    Schedule,
    ScheduleConfig,
)
from mtf.training.transformations import Transformation


def create(config: AnyOptimizer, network: T5Config, axes: Tree) -> Optimizer:
    """Returns the optimizer for its settings; `axes` are the trained parameters' logical axes."""
    if isinstance(config, AdafactorConfig):
        return _Adafactor(config, axes)
    if isinstance(config, AdamWConfig):
        return _AdamW(config, axes)
    return Transformation(config, t5.param_shapes(network), t5.param_axes(network))


@dataclasses.dataclass(frozen=True)
class _Scheduled:
    """The common part of the optimizers that have a schedule and slots for each parameter."""

    config: Any  # AdafactorConfig or AdamWConfig
    axes: Tree

    @property
    def clip_threshold(self) -> float | None:
        return self.config.global_norm_clip_threshold

    def state_axes(self, params: Tree, states: Tree) -> Tree:
        def of_slots(axes: tuple[str, ...], param: Any, slots: Tree) -> Tree:
            return {
                name: axes if slot.shape == param.shape else (None,) * len(slot.shape)
                for name, slot in slots.items()
            }

        return self._map(of_slots, params, states)

    @property
    def schedule(self) -> ScheduleConfig | Schedule:
        return self.config.learning_rate

    def learning_rate(self, rate: jax.Array | None, states: Tree) -> jax.Array | None:
        return rate

    def _map(self, function: Callable[..., Any], *trees: Tree) -> Tree:
        """Maps `function` over the axes, whose leaves are tuples, and the trees below them."""
        return jax.tree.map(function, self.axes, *trees, is_leaf=lambda x: isinstance(x, tuple))


class _Adafactor(_Scheduled):
    def init(self, params: Tree) -> Tree:
        def slots(names: tuple[str, ...], param: Any) -> adafactor.Slots:
            return adafactor.init_slots(self.config, param, names)

        return self._map(slots, params)

    def update(
        self, step: Any, rate: Any, loss: Any, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        def updated(names: tuple[str, ...], param: Any, slots: Any, grad: Any) -> tuple[Any, Any]:
            return adafactor.update_param(self.config, step, rate, param, slots, grad, names)

        pairs = self._map(updated, params, states, grads)
        new = self._map(lambda _, pair: pair[0], pairs)
        return new, self._map(lambda _, pair: pair[1], pairs)


class _AdamW(_Scheduled):
    def init(self, params: Tree) -> Tree:
        return _slots(self._adam.init(params))

    def update(
        self, step: Any, rate: Any, loss: Any, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        decay = self.config.weight_decay_rate
        mu = jax.tree.map(lambda _, slots: slots["mu"], params, states)
        nu = jax.tree.map(lambda _, slots: slots["nu"], params, states)
        state = optax.ScaleByAdamState(step, mu, nu)
        updates, state = self._adam.update(grads, state)

        def new(names: tuple[str, ...], param: jax.Array, update: jax.Array) -> jax.Array:
            # Norm scales, the only parameters of T5 that are not matrices, have no weight decay.
            decayed = decay and len([name for name in names if name != "layers"]) >= 2
            return param - rate * (update + (decay * param if decayed else 0.0))

        return self._map(new, params, updates), _slots(state)

    @property
    def _adam(self) -> optax.GradientTransformation:
        config = self.config
        return optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)


def _slots(state: Any) -> Tree:
    return jax.tree.map(lambda mu, nu: {"mu": mu, "nu": nu}, state.mu, state.nu)


Optimizer: TypeAlias = _Adafactor | _AdamW | Transformation
