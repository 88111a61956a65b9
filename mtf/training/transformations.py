"""Optimizers made with optax, for parameters whose layers may be stacked.

The transformation gets each layer's parameters by themselves, under T5X's names, so that it does
not depend on whether layers are stacked. Its state is kept as nested dicts, in memory as in a
checkpoint: `0/mu/decoder/layers_0/…` is the leaf of the field `mu` of the first element of a tuple.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import optax

from mtf.errors import UserError
from mtf.models.stacking import Tree, stack_layers, unstack_layers
from mtf.training.settings import GradientTransformation


def init(optimizer: GradientTransformation, params: Tree) -> Tree:
    """Returns the state before the first step."""
    return _as_dicts(optimizer.init(unstack_layers(params)))


def update(
    optimizer: GradientTransformation, loss: jax.Array, grads: Tree, params: Tree, states: Tree
) -> tuple[Tree, Tree]:
    """Returns new parameters and state; `loss` is passed to optax as `value`."""
    is_stacked = _is_stacked(params)
    grads, params = unstack_layers(grads), unstack_layers(params)
    state = _from_dicts(states, jax.eval_shape(optimizer.init, params))
    takes_more = optax.with_extra_args_support(optimizer)
    updates, state = takes_more.update(grads, state, params, value=loss)
    params = optax.apply_updates(params, updates)
    return stack_layers(params) if is_stacked else params, _as_dicts(state)


def state_axes(params: Tree, axes: Tree, states: Tree) -> Tree:
    """Returns the logical axes of the state.

    A leaf with the name and the shape of a parameter has its axes. One that lacks some of its
    dimensions, as factored statistics do, has the axes of the others, unless these could be
    different ones: of a square matrix, nothing says which dimension is left. Others are not split.

    Args:
      params: shapes of the parameters, not stacked.
      axes: their logical axes.
      states: shapes of the state.
    """
    owners = _by_path(params)
    names = _by_path(axes)

    def of_leaf(path: Any, leaf: Any) -> tuple[str | None, ...]:
        owner = owner_of(tuple(entry.key for entry in path), owners)
        if owner is None:
            return (None,) * len(leaf.shape)
        return _kept_axes(leaf.shape, owners[owner].shape, names[owner])

    return jax.tree_util.tree_map_with_path(of_leaf, states)


def _kept_axes(
    shape: tuple[int, ...], whole: tuple[int, ...], axes: tuple[str | None, ...]
) -> tuple[str | None, ...]:
    """Returns the axes of the dimensions of `whole` that are left in `shape`, if certain."""
    choices = itertools.combinations(zip(whole, axes, strict=True), len(shape))
    found = {
        tuple(axis for _, axis in kept) for kept in choices if shape == tuple(d for d, _ in kept)
    }
    return found.pop() if len(found) == 1 else (None,) * len(shape)


def owner_of(path: tuple[str, ...], params: Any) -> tuple[str, ...] | None:
    """Returns the path of the parameter, one of `params`, with which a path of a state ends."""
    tails = (path[start:] for start in range(len(path)))
    return next((tail for tail in tails if tail in params), None)


def learning_rate(states: Tree) -> jax.Array | None:
    """Returns the learning rate that `optax.inject_hyperparams` keeps in the state, or None."""
    found = [
        leaf
        for path, leaf in _by_path(states).items()
        if path[-2:] == ("hyperparams", "learning_rate")
    ]
    return found[0] if len(found) == 1 else None


def _is_stacked(params: Tree) -> bool:
    return any("layers" in side for side in params.values() if isinstance(side, dict))


def _by_path(tree: Tree) -> dict[tuple[str, ...], Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))
    return {tuple(entry.key for entry in path): leaf for path, leaf in leaves}


def _paths(state: Any) -> tuple[list[tuple[str, ...]], list[Any], Any]:
    """Returns the path and the value of each leaf of optax's state, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    paths = [
        tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path) or ("state",)
        for path, _ in leaves
    ]
    return paths, [leaf for _, leaf in leaves], structure


def _as_dicts(state: Any) -> Tree:
    paths, leaves, _ = _paths(state)
    tree: Tree = {}
    for path, leaf in zip(paths, leaves, strict=True):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UserError(
                f"optimizer: its state has a random key ({'/'.join(path)}), which a checkpoint "
                "cannot hold; expected numbers only"
            )
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree


def _from_dicts(tree: Tree, like: Any) -> Any:
    """Returns the state that `_as_dicts` has turned into `tree`; `like` has its structure."""
    found = _by_path(tree)
    paths, _, structure = _paths(like)
    return jax.tree_util.tree_unflatten(structure, [found[path] for path in paths])
