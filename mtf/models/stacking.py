"""Layers one by one under T5X's names, or stacked along a leading axis for `lax.scan`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Tree = dict[str, Any]


def stack_layers(tree: Tree) -> Tree:
    """Unrolled to stacked: `layers_0`, `layers_1`, … of each stack become `layers`, axis 0.

    Takes any tree that is nested like the parameters, the optimizer's state for instance.
    """
    out = dict(tree)
    for side in ("encoder", "decoder"):
        out[side] = {k: v for k, v in tree[side].items() if not k.startswith("layers_")}
        out[side]["layers"] = jax.tree.map(lambda *xs: jnp.stack(xs), *layers_of(tree[side]))
    return out


def unstack_layers(tree: Tree) -> Tree:
    """Stacked to unrolled, the inverse of `stack_layers`."""
    out = dict(tree)
    for side in ("encoder", "decoder"):
        out[side] = {k: v for k, v in tree[side].items() if k != "layers"}
        out[side] |= {f"layers_{i}": layer for i, layer in enumerate(layers_of(tree[side]))}
    return out


def layers_of(stack: Tree) -> list[Tree]:
    """The layers of one side (`tree["decoder"]`) in order, whichever way it holds them."""
    if "layers" in stack:
        num_layers = jax.tree.leaves(stack["layers"])[0].shape[0]
        return [jax.tree.map(lambda x, i=i: x[i], stack["layers"]) for i in range(num_layers)]
    num_layers = sum(name.startswith("layers_") for name in stack)
    return [stack[f"layers_{i}"] for i in range(num_layers)]
