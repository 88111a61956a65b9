"""Defines a T5X trainer that normalizes the loss over the whole batch."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import copy
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from t5x import losses, trainer

# Name of a feature that contains the loss divisor in every row and thus in every microbatch.
_FACTOR = "loss_normalizing_factor"


class Trainer(trainer.Trainer):
    """A trainer whose loss and gradients do not depend on the number of microbatches.

    T5X's trainer computes the factors NUM_REAL_TARGET_TOKENS and AVERAGE_PER_SEQUENCE separately
    for each microbatch and adds up the normalized losses. This trainer calls the same function of
    T5X, but computes the factors once for the whole batch.
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
    """A model whose loss uses the normalizing factor and the weights of the whole batch."""

    def __init__(self, model: Any):
        self._model = model

    def with_factor(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns a copy of a whole batch to which its normalizing factor and weights are added."""
        factor, weights = losses.get_loss_normalizing_factor_and_weights(
            self._model._loss_normalizing_factor, batch
        )
        rows = jnp.full(weights.shape[0], factor, jnp.float32)
        return {**batch, "decoder_loss_weights": weights, _FACTOR: rows}

    def loss_fn(self, params: Any, batch: Mapping[str, jax.Array], dropout_rng: Any) -> Any:
        """Returns a microbatch's loss, divided by the normalizing factor of the whole batch."""
        model = copy.copy(self._model)
        model._loss_normalizing_factor = batch[_FACTOR][0]
        return model.loss_fn(params, {k: v for k, v in batch.items() if k != _FACTOR}, dropout_rng)
