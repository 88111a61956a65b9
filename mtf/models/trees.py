"""Nested dicts as flat dicts whose keys are paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

Tree = dict[str, Any]


def flat_names(tree: Any) -> dict[str, Any]:
    """Returns a dict mapping paths, such as "target/encoder/…", to the leaves of nested dicts.

    Tuples, such as the axes of a parameter, are leaves.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))[0]
    return {"/".join(str(entry.key) for entry in path): leaf for path, leaf in leaves}


def nested(flat: Mapping[str, Any]) -> Tree:
    """Returns nested dicts; this is the inverse of `flat_names`."""
    from flax.traverse_util import unflatten_dict  # 60 ms that most runs do not need.

    return unflatten_dict(flat, sep="/")


def merged(first: Tree, second: Tree) -> Tree:
    """Returns nested dicts with the leaves of both trees, which have no leaf in common."""
    return second | {
        name: merged(value, second.get(name, {})) if isinstance(value, dict) else value
        for name, value in first.items()
    }
