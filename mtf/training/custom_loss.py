"""Calls custom loss functions and checks their results (see `ModelConfig.loss_fn`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mtf.base.errors import UserError
from mtf.models.argmax import argmax
from mtf.models.settings import LossFunction
from mtf.models.t5 import Batch

# This prefix is added to the names of the metrics that a custom loss function returns.
PREFIX = "loss_fn/"

_EXPECTED = (
    "expected a tuple (loss, metrics): loss must be a float scalar, the sum over the tokens of the "
    "batch, and metrics must be a dict mapping names to scalars"
)


def custom_loss(
    loss_fn: LossFunction, logits: jax.Array, batch: Batch, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss and a dict with the keys "loss", "z_loss", "num_correct" and "loss_fn/NAME".

    NAME is a metric of `loss_fn`. Raises UserError if `loss_fn` does not return a loss and metrics.
    """
    returned = loss_fn(logits, batch, weights)

    def check(holds: bool, found: str) -> None:
        if not holds:
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise UserError(f"model.loss_fn: {name} returned {found}; {_EXPECTED}")

    check(isinstance(returned, tuple) and len(returned) == 2, shown(returned))
    loss, metrics = returned
    check(is_scalar(loss), f"a loss that is {shown(loss)}")
    check(isinstance(metrics, Mapping), f"metrics that are {shown(metrics)}")
    for metric, value in metrics.items():
        check(is_scalar(value), f"a metric {metric!r} that is {shown(value)}")
    loss = jnp.asarray(loss, jnp.float32)
    correct = (argmax(logits) == batch["decoder_target_tokens"]) & (weights > 0)
    sums = {
        "loss": loss,
        "z_loss": jnp.zeros((), jnp.float32),
        "num_correct": jnp.sum(correct, dtype=jnp.float32),
    }
    return loss, sums | {f"{PREFIX}{k}": jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def is_scalar(value: Any) -> bool:
    """Returns whether a value from a user's function is a number or a scalar array."""
    return isinstance(value, int | float | jax.Array) and jnp.shape(value) == ()


def shown(value: Any) -> str:
    """Returns a description of the type of a value, for use in error messages."""
    if isinstance(value, jax.Array):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"a {type(value).__name__}"
