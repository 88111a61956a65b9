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
    data_fields=["step", "params", "param_states", "ema"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The input and output of a training step.

    Attributes:
      step: int32 scalar, the number of updates so far.
      params: nested dict with T5X's names; layers are stacked if the network is scanned.
      param_states: the same nesting, with a dict of the optimizer's slots for each parameter that
        is trained.
      ema: the average of the parameters that are trained; None: no average.
    """

    step: Any
    params: Tree
    param_states: Tree
    ema: Tree | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the tree of a checkpoint, with T5X's names."""
        state = {"step": self.step, "param_states": self.param_states}
        if self.ema is not None:
            state["ema"] = self.ema
        return {"target": self.params, "state": state}

    @classmethod
    def from_state_dict(cls, tree: Mapping[str, Any]) -> TrainState:
        """Returns the state from its `state_dict`."""
        state = tree["state"]
        return cls(state["step"], tree["target"], state["param_states"], state.get("ema"))
