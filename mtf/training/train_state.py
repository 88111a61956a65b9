"""The training state (T5X: `train_state.FlaxOptimTrainState`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from mtf.models.trees import Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The input and output of a training step.

    Attributes:
      step: the number of updates so far, as an int32 scalar.
      params: the parameters, in a nested dict with T5X's names. If the network uses
        `scan_layers`, the layers are stacked.
      param_states: the optimizer state. For Adafactor and AdamW, it is nested like `params` and
        has a dict of slots for each trained parameter.
      ema: the moving average of the trained parameters; None if no average is kept.
    """

    step: Any
    params: Tree
    param_states: Tree
    ema: Tree | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as a nested dict with the names that T5X uses in checkpoints."""
        state = {"step": self.step, "param_states": self.param_states}
        if self.ema is not None:
            state["ema"] = self.ema
        return {"target": self.params, "state": state}

    @classmethod
    def from_state_dict(cls, tree: Mapping[str, Any]) -> TrainState:
        """Returns the state whose `state_dict()` is `tree`."""
        state = tree["state"]
        return cls(state["step"], tree["target"], state["param_states"], state.get("ema"))
