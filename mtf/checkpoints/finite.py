"""Finds the arrays of a training state that contain NaN or infinity.

Even if the loss and the gradient norm are finite, an update or an optimizer slot may overflow.
Therefore, the state is checked before it is saved and after it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

# This function is called for one array at a time, so that it is compiled only once for each shape.
_all_finite = jax.jit(lambda x: jnp.all(jnp.isfinite(x)))


def not_finite(arrays: Mapping[str, jax.Array]) -> list[str]:
    """Returns the names of arrays that contain NaN or infinity, the same in all processes."""
    # `not` waits for each result in turn: concurrent collectives may deadlock on CPUs.
    return [name for name, array in arrays.items() if not _all_finite(array)]


def shown(names: list[str]) -> str:
    """Returns text with the first three names and the number of remaining names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
