"""The compiled training step."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from mtf.models.settings import ModelConfig
from mtf.training.trainer import Trainer
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer


def keys(trainer: Trainer) -> list[str]:
    """The random keys that are constants of the training step."""
    batch: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_batch())
    program = trainer._jit_train_step.lower(trainer.state_shapes, batch).as_text()
    return re.findall(r"dense<\[(\d+, \d+)\]> : tensor<2xui32>", program)


def test_a_run_that_goes_on_compiles_what_a_new_one_does() -> None:
    """It makes no initial parameters before its first step."""
    model = ModelConfig(dataclasses.replace(NETWORK, dropout_rate=0.1))
    new, resumed = (dataclasses.replace(make_trainer(), model=model) for _ in range(2))
    state = new.init_state()
    assert keys(resumed) == keys(new) != []
    # It can make them afterwards.
    jax.tree.map(np.testing.assert_array_equal, resumed.init_state(), state)
