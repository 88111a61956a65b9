"""T5X's trainer, with the loss normalized over the whole batch before it is split."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

import copy
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from t5x import losses, trainer

# A feature with the divisor of the loss in every row, so that each microbatch gets it.
_FACTOR = "loss_normalizing_factor"


class Trainer(trainer.Trainer):
    """A trainer whose loss and gradients do not depend on the number of microbatches.

    T5X computes NUM_REAL_TARGET_TOKENS and AVERAGE_PER_SEQUENCE from each microbatch, and adds up
    the normalized losses. This trainer calls the same function of T5X with the whole batch.
    """

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
        model = _NormalizedModel(self._model)

        def train_step(train_state: Any, batch: Mapping[str, jax.Array]) -> Any:
            return trainer.train_with_lr(
                train_state,
                model.with_factor(batch),
                self._learning_rate_fn(train_state.step),
                self._get_step_rng(train_state.step),
                model,
                self._num_microbatches,
                self._weight_metrics_computer,
                self._partitioner.data_partition_spec,
            )

        state, rows = self._train_state_axes, self._partitioner.data_partition_spec
        return self._partitioner.partition(train_step, (state, rows), (state, None), (), (0,))


class _NormalizedModel:
    """The loss of a model, for batches with the factor and the weights of the whole batch."""

    def __init__(self, model: Any):
        self._model = model

    def with_factor(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns a whole batch with its normalizing factor and its weights."""
        factor, weights = losses.get_loss_normalizing_factor_and_weights(
            self._model._loss_normalizing_factor, batch
        )
        rows = jnp.full(weights.shape[0], factor, jnp.float32)
        return {**batch, "decoder_loss_weights": weights, _FACTOR: rows}

    def loss_fn(self, params: Any, batch: Mapping[str, jax.Array], dropout_rng: Any) -> Any:
        """Returns the loss of a microbatch, divided by the factor of the whole batch."""
        model = copy.copy(self._model)
        model._loss_normalizing_factor = batch[_FACTOR][0]
        return model.loss_fn(params, {k: v for k, v in batch.items() if k != _FACTOR}, dropout_rng)
