#!/usr/bin/env python
"""A training program with tyro: a dataclass for each component, a union for a choice.

It stores its config as `config.yaml`; `CONFIG=config.yaml python train.py` starts from that file.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import tyro


@dataclasses.dataclass(frozen=True)
class Model:
    num_layers: int = 2
    """Layers of the encoder and of the decoder."""
    num_heads: int = 4
    """Attention heads of a layer."""
    dropout_rate: float = 0.1
    """Probability of zeroing an activation."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    base_learning_rate: float = 0.001
    """The learning rate after the warm-up."""
    warmup_steps: int = 100
    """Steps of the linear warm-up."""


@dataclasses.dataclass(frozen=True)
class Adafactor:
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    decay_rate: float = 0.8
    """Exponent of the second moment's decay."""


@dataclasses.dataclass(frozen=True)
class AdamW:
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    beta1: float = 0.9
    """Decay of the first moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a network."""

    model: Model = dataclasses.field(default_factory=Model)
    optimizer: Adafactor | AdamW = dataclasses.field(default_factory=Adafactor)
    train_steps: int = 1000
    """The last step."""
    batch_size: int = 16
    """Examples of a batch."""


if __name__ == "__main__":
    stored = os.environ.get("CONFIG")
    default = tyro.extras.from_yaml(Train, Path(stored).read_text()) if stored else Train()
    config = tyro.cli(Train, default=default, config=(tyro.conf.ShowSourcePath,))
    print(config)
    Path("config.yaml").write_text(tyro.extras.to_yaml(config))
    values = dataclasses.asdict(config)
    values["optimizer"]["name"] = type(config.optimizer).__name__
    print("trained", json.dumps(values, sort_keys=True))
