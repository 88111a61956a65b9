"""A loss function of the user's own (`ModelConfig.loss_fn`, docs/extending.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mtf.errors import UserError
from mtf.models.argmax import argmax
from mtf.models.settings import LossFunction
from mtf.models.t5 import Batch

# Of the names of the metrics that a loss function returns.
PREFIX = "loss_fn/"

_EXPECTED = (
    "expected (loss, metrics): a float scalar, summed over the tokens of the batch, and a dict of "
    "scalars by name"
)


def own_loss(
    loss_fn: LossFunction, logits: jax.Array, batch: Batch, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss, and all sums: "loss", "z_loss", "num_correct" and "loss_fn/NAME".

    Raises UserError if the function returns something else than a loss and metrics.
    """
    returned = loss_fn(logits, batch, weights)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _refused(loss_fn, f"a {type(returned).__name__}")
    loss, metrics = returned
    if not _is_scalar(loss) or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise _refused(loss_fn, f"a loss that is {_shown(loss)}")
    if not isinstance(metrics, Mapping):
        raise _refused(loss_fn, f"metrics that are {_shown(metrics)}")
    for name, value in metrics.items():
        if not _is_scalar(value):
            raise _refused(loss_fn, f"a metric {name!r} that is {_shown(value)}")
    loss = jnp.asarray(loss, jnp.float32)
    correct = (argmax(logits) == batch["decoder_target_tokens"]) & (weights > 0)
    sums = {
        "loss": loss,
        "z_loss": jnp.zeros((), jnp.float32),
        "num_correct": jnp.sum(correct, dtype=jnp.float32),
    }
    return loss, sums | {f"{PREFIX}{k}": jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | jax.Array) and jnp.shape(value) == ()


def _shown(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"a {type(value).__name__}"


def _refused(loss_fn: LossFunction, found: str) -> UserError:
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    return UserError(f"model.loss_fn: {name} returned {found}; {_EXPECTED}")
