"""The state of training (T5X: `train_state.FlaxOptimTrainState`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from mtf.models.stacking import Tree


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "param_states"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a step of training reads and writes.

    Attributes:
      step: int32 scalar, the number of updates made so far.
      params: nested dict under T5X's names; stacked where the network is scanned.
      param_states: the same nesting, with a dict of the optimizer's slots for each parameter.
    """

    step: Any
    params: Tree
    param_states: Tree

    def state_dict(self) -> dict[str, Any]:
        """Returns the tree that is written to checkpoints, under T5X's names."""
        return {
            "target": self.params,
            "state": {"step": self.step, "param_states": self.param_states},
        }

    @classmethod
    def from_state_dict(cls, tree: Mapping[str, Any]) -> TrainState:
        """Returns the state of which `tree` is the `state_dict`."""
        return cls(tree["state"]["step"], tree["target"], tree["state"]["param_states"])
