#!/usr/bin/env python
"""A training program with draccus: dataclasses, a `ChoiceRegistry` for a choice.

It stores its config as `config.yaml`; `--config_path config.yaml` starts from that file.
"""

import dataclasses
import json

import draccus


@dataclasses.dataclass
class Model:
    num_layers: int = 2  # Layers of the encoder and of the decoder.
    num_heads: int = 4  # Attention heads of a layer.
    dropout_rate: float = 0.1  # Probability of zeroing an activation.


@dataclasses.dataclass
class Schedule:
    base_learning_rate: float = 0.001  # The learning rate after the warm-up.
    warmup_steps: int = 100  # Steps of the linear warm-up.


@dataclasses.dataclass
class Optimizer(draccus.ChoiceRegistry):
    schedule: Schedule = dataclasses.field(default_factory=Schedule)


@Optimizer.register_subclass("adafactor")
@dataclasses.dataclass
class Adafactor(Optimizer):
    decay_rate: float = 0.8  # Exponent of the second moment's decay.


@Optimizer.register_subclass("adamw")
@dataclasses.dataclass
class AdamW(Optimizer):
    beta1: float = 0.9  # Decay of the first moment.
    weight_decay: float = 0.01  # Decoupled weight decay.


@dataclasses.dataclass
class Train:
    """Trains a network."""

    model: Model = dataclasses.field(default_factory=Model)
    optimizer: Optimizer = dataclasses.field(default_factory=Adafactor)
    train_steps: int = 1000  # The last step.
    batch_size: int = 16  # Examples of a batch.


@draccus.wrap()
def train(config: Train) -> None:
    print(config)
    with open("config.yaml", "w") as file:
        draccus.dump(config, file)
    values = dataclasses.asdict(config)
    values["optimizer"]["name"] = type(config.optimizer).__name__
    print("trained", json.dumps(values, sort_keys=True))


if __name__ == "__main__":
    train()
