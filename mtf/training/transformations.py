"""Applies optax optimizers to parameters whose layers may be stacked.

The optimizer receives separate layers with T5X's names, even if the layers are stacked in memory.
Its state is stored as nested dicts, both in memory and in checkpoints. For example, the leaf
`0/mu/decoder/layers_0/…` belongs to the field `mu` of the first element of the optax state.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import optax

from mtf.base.errors import UserError
from mtf.models.stacking import stack_layers, unstack_layers
from mtf.models.trees import Tree, flat_names, nested
from mtf.training.settings import GradientTransformation


@dataclasses.dataclass(frozen=True)
class Transformation:
    """An optimizer of optax or of the user (`mtf.training.optimizers` has others).

    Attributes:
      optimizer: the optax optimizer.
      shapes: the shapes of all parameters, with separate layers.
      axes: the logical axes of all parameters, with separate layers.
      clip_threshold: the largest global norm of the gradients that `update` receives; None for no
        limit.
      schedule: the schedule of the learning rate; None because the optimizer contains its own.
    """

    optimizer: GradientTransformation
    shapes: Tree
    axes: Tree
    clip_threshold: ClassVar[float | None] = None
    schedule: ClassVar[None] = None

    def init(self, params: Tree) -> Tree:
        """Returns the initial optimizer state as nested dicts."""
        return _as_dicts(self.optimizer.init(unstack_layers(params)))

    def update(
        self, step: Any, rate: Any, loss: Any, grads: Tree, params: Tree, states: Tree
    ) -> tuple[Tree, Tree]:
        """Returns the updated parameters and state; optax receives `loss` as `value`.

        `step` is the number of previous updates. `rate` is the learning rate of `schedule`.
        """
        is_stacked = any("layers" in side for side in params.values() if isinstance(side, dict))
        grads, params = unstack_layers(grads), unstack_layers(params)
        state = _from_dicts(states, jax.eval_shape(self.optimizer.init, params))
        takes_more = optax.with_extra_args_support(self.optimizer)
        updates, state = takes_more.update(grads, state, params, value=loss)
        params = optax.apply_updates(params, updates)
        return stack_layers(params) if is_stacked else params, _as_dicts(state)

    def state_axes(self, params: Tree, states: Tree) -> Tree:
        """Returns the logical axes of the optimizer state; None marks an axis that is not split.

        A leaf that has the name and the shape of a parameter gets the axes of that parameter. Other
        leaves, such as factored statistics, are not split.
        """
        owners, names = flat_names(self.shapes), flat_names(self.axes)

        def of_leaf(path: Any, leaf: Any) -> tuple[str | None, ...]:
            keys = [entry.key for entry in path]
            tails = ("/".join(keys[i:]) for i in range(len(keys)))
            owner = next((tail for tail in tails if tail in owners), None)
            if owner is None or leaf.shape != owners[owner].shape:
                return (None,) * len(leaf.shape)
            return names[owner]

        return jax.tree_util.tree_map_with_path(of_leaf, states)

    def learning_rate(self, rate: Any, states: Tree) -> jax.Array | None:
        """Returns the learning rate that `optax.inject_hyperparams` has stored in the state.

        Returns None if the state contains no learning rate or more than one.
        """
        stored = "/hyperparams/learning_rate"
        found = [leaf for path, leaf in flat_names(states).items() if f"/{path}".endswith(stored)]
        return found[0] if len(found) == 1 else None


def _paths(state: Any) -> tuple[list[str], list[Any], Any]:
    """Returns the paths and values of all leaves of an optax state, and its tree structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/") or "state" for path, _ in leaves
    ]
    return paths, [leaf for _, leaf in leaves], structure


def _as_dicts(state: Any) -> Tree:
    paths, leaves, _ = _paths(state)
    for path, leaf in zip(paths, leaves, strict=True):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UserError(
                f"optimizer: its state contains a random key ({path}), which cannot be "
                "stored in a checkpoint; expected only numbers"
            )
    return nested(dict(zip(paths, leaves, strict=True)))


def _from_dicts(tree: Tree, like: Any) -> Any:
    """Converts nested dicts from `_as_dicts` to an optax state with the structure of `like`."""
    found = flat_names(tree)
    paths, _, structure = _paths(like)
    return jax.tree_util.tree_unflatten(structure, [found[path] for path in paths])
