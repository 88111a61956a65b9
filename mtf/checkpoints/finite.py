"""Finds arrays of a state that contain NaN or infinity.

The state may be not finite although loss and gradient norm are: an update or a slot of the
optimizer may overflow. So the state is checked before it is saved and after it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def flat_names(tree: Any) -> dict[str, Any]:
    """Returns path → leaf of nested dicts; a path is, for example, "target/encoder/…"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(entry.key) for entry in path): leaf for path, leaf in leaves}


# One array at a time, so that it compiles once per shape.
_all_finite = jax.jit(lambda x: jnp.all(jnp.isfinite(x)))


def not_finite(arrays: Mapping[str, jax.Array]) -> list[str]:
    """Returns the names of arrays with NaN or infinity, the same on all processes."""
    # `not` waits for each result: on CPUs, collectives of concurrent computations may deadlock.
    return [name for name, array in arrays.items() if not _all_finite(array)]


def shown(names: list[str]) -> str:
    """Returns the first three names and the number of the others, as text."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
