"""Which arrays of a state hold NaN or infinity.

A finite loss and gradient norm do not prove that a state is finite: an update may overflow, or a
slot of the optimizer hold a NaN. So the state itself is checked wherever it is saved or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def flat_names(tree: Any) -> dict[str, Any]:
    """Returns the leaves of nested dicts by their path: "target/encoder/…"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(entry.key) for entry in path): leaf for path, leaf in leaves}


# An array at a time: compiled once for each shape, however many arrays a state has.
_all_finite = jax.jit(lambda x: jnp.all(jnp.isfinite(x)))


def not_finite(arrays: Mapping[str, jax.Array]) -> list[str]:
    """Returns the names of arrays with a NaN or an infinity; all processes find the same."""
    # Each is waited for: on CPUs, collectives of several computations at once may wait for each
    # other for ever.
    return [name for name, array in arrays.items() if not _all_finite(array)]


def shown(names: list[str]) -> str:
    """Returns the first few of the names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
