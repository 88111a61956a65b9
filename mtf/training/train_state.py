"""The state of training (T5X: `train_state.FlaxOptimTrainState`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.models.stacking import Tree, stack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.optimizers import is_axes, make_optimizer, slot_axes
from mtf.training.settings import AdafactorConfig, AdamWConfig


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "param_states"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a step of training reads and writes.

    Attributes:
      step: int32 scalar, updates made so far.
      params: nested dict under T5X's names; stacked where the network is scanned.
      param_states: the same nesting, with a dict of the optimizer's slots for each parameter.
    """

    step: Any
    params: Tree
    param_states: Tree

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as a checkpoint has it (T5X: `FlaxOptimTrainState.state_dict`)."""
        return {
            "target": self.params,
            "state": {"step": self.step, "param_states": self.param_states},
        }

    @classmethod
    def from_state_dict(cls, tree: Mapping[str, Any]) -> TrainState:
        """Returns the state that `state_dict` gave."""
        return cls(tree["state"]["step"], tree["target"], tree["state"]["param_states"])


def state_shapes(
    network: T5Config, optimizer: AdafactorConfig | AdamWConfig, *, stacked: bool
) -> TrainState:
    """Shapes and dtypes of a training state; allocates nothing."""
    params = t5.param_shapes(network, stacked=stacked)
    axes = t5.param_axes(network, stacked=stacked)
    param_states = jax.eval_shape(make_optimizer(optimizer, axes).init, params)
    return TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, param_states)


def state_shardings(
    network: T5Config, shapes: TrainState, partitioner: PjitPartitioner, *, stacked: bool
) -> TrainState:
    """Returns where each part of the state lies: slots of a parameter's shape as the parameter."""
    axes = t5.param_axes(network, stacked=stacked)
    state_axes = jax.tree.map(
        lambda names, param, slots: {
            key: slot_axes(names, param.shape, slot) for key, slot in slots.items()
        },
        axes,
        shapes.params,
        shapes.param_states,
        is_leaf=is_axes,
    )
    return TrainState(
        partitioner.replicated,
        partitioner.shardings(shapes.params, axes),
        partitioner.shardings(shapes.param_states, state_axes),
    )


def init_state(
    network: T5Config, optimizer: AdafactorConfig | AdamWConfig, rng: jax.Array, *, stacked: bool
) -> TrainState:
    """Returns a fresh state at step 0; call it under jit with the shardings as outputs."""
    params = t5.init_params(network, rng)
    if stacked:
        params = stack_layers(params)
    axes = t5.param_axes(network, stacked=stacked)
    param_states = make_optimizer(optimizer, axes).init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, param_states)
