"""Optimizers of mtf that T5X does not have, or has with another state."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from t5x import optimizers


@struct.dataclass
class _HyperParams:
    """What T5X's trainer passes to an update."""

    learning_rate: Any = None


class AdamW(optimizers.OptimizerDef):
    """AdamW from optax, with the trainer's learning rate and mtf's names of optimizer states.

    T5X's wrapper of optax counts the steps of the schedule in the state of the optimizer, so it
    cannot start from a checkpoint of another optimizer, nor exchange checkpoints with mtf.
    `OptimizerState.step` counts the updates for the bias correction, as in `mtf.training`.
    """

    def __init__(
        self,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay_rate: float,
        global_norm_clip_threshold: float | None,
    ):
        super().__init__(_HyperParams())
        self._adam = optax.scale_by_adam(beta1, beta2, epsilon)
        self._weight_decay_rate = weight_decay_rate
        threshold = global_norm_clip_threshold
        self._clip = optax.identity() if threshold is None else optax.clip_by_global_norm(threshold)

    def init_state(self, params: Any) -> optimizers.OptimizerState:
        """Returns the state before the first update."""
        slots = jax.tree.map(lambda p: {"mu": jnp.zeros_like(p), "nu": jnp.zeros_like(p)}, params)
        return optimizers.OptimizerState(jnp.zeros((), jnp.int32), slots)

    def apply_gradient(
        self, hyper_params: _HyperParams, params: Any, state: optimizers.OptimizerState, grads: Any
    ) -> tuple[Any, optimizers.OptimizerState]:
        """Returns new parameters and state; norm scales have no weight decay."""
        mu, nu = (
            jax.tree.map(lambda _, slots, name=name: slots[name], params, state.param_states)
            for name in ("mu", "nu")
        )
        grads, _ = self._clip.update(grads, optax.EmptyState())
        updates, adam = self._adam.update(grads, optax.ScaleByAdamState(state.step, mu, nu))

        def new(param: jax.Array, update: jax.Array) -> jax.Array:
            decay = self._weight_decay_rate if param.ndim >= 2 else 0.0
            return param - hyper_params.learning_rate * (update + decay * param)

        slots = jax.tree.map(lambda mu, nu: {"mu": mu, "nu": nu}, adam.mu, adam.nu)
        new_state = optimizers.OptimizerState(state.step + 1, slots)
        return jax.tree.map(new, params, updates), new_state

    def derive_logical_axes(self, optimizer: Any, param_logical_axes: Any) -> Any:
        """Returns the optimizer with logical axes for arrays; slots have those of parameters."""
        axes = jax.tree.map(lambda _: None, optimizer.state_dict())
        axes["target"] = param_logical_axes
        axes["state"]["param_states"] = jax.tree.map(
            lambda names: {"mu": names, "nu": names}, param_logical_axes
        )
        return optimizer.restore_state(axes)
