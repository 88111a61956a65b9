"""Converts between separate layers, with T5X's names, and layers stacked for `lax.scan`.

The entries `layers_0`, `layers_1`, … are stacked along axis 0 of a single entry `layers`. They may
occur at any depth of a tree, which contains parameters, optimizer state or an entire checkpoint.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from mtf.models.trees import Tree

_STACKED = re.compile(r"(.*/layers)(/.*)")


def stack_layers(tree: Tree) -> Tree:
    """Returns the tree with the layers of each stack stacked along a leading axis."""
    if not isinstance(tree, dict):
        return tree
    out = {k: stack_layers(v) for k, v in tree.items() if not k.startswith("layers_")}
    if len(out) < len(tree):
        out["layers"] = jax.tree.map(lambda *xs: jnp.stack(xs), *layers_of(tree))
    return out


def unstack_layers(tree: Tree) -> Tree:
    """Returns the tree with separate layers; this is the inverse of `stack_layers`."""
    if not isinstance(tree, dict):
        return tree
    out = {k: unstack_layers(v) for k, v in tree.items() if k != "layers"}
    if "layers" in tree:
        out |= {f"layers_{i}": layer for i, layer in enumerate(layers_of(tree))}
    return out


def layers_of(stack: Tree) -> list[Tree]:
    """Returns the layers of a stack, such as `tree["decoder"]`, in order."""
    if "layers" in stack:
        num_layers = jax.tree.leaves(stack["layers"])[0].shape[0]
        return [jax.tree.map(lambda x, i=i: x[i], stack["layers"]) for i in range(num_layers)]
    num_layers = sum(name.startswith("layers_") for name in stack)
    return [stack[f"layers_{i}"] for i in range(num_layers)]


def is_stacked(name: str) -> bool:
    """Returns whether a name, such as `…/layers/mlp/wo/kernel`, belongs to a stacked tensor."""
    return _STACKED.fullmatch(name) is not None


def unstacked_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Returns the name of each layer of a stacked tensor; for other tensors, only `name`."""
    match = _STACKED.fullmatch(name)
    return [f"{match[1]}_{i}{match[2]}" for i in range(shape[0])] if match else [name]
