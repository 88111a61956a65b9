#!/usr/bin/env python
"""A training program with Hydra: YAML files with dataclasses as their schema."""

import json
from dataclasses import dataclass, field

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf


@dataclass
class Model:
    num_layers: int = 2
    num_heads: int = 4
    dropout_rate: float = 0.1


@dataclass
class Schedule:
    base_learning_rate: float = 0.001
    warmup_steps: int = 100


@dataclass
class Optimizer:
    name: str
    schedule: Schedule = field(default_factory=Schedule)


@dataclass
class Adafactor(Optimizer):
    name: str = "Adafactor"
    decay_rate: float = 0.8


@dataclass
class AdamW(Optimizer):
    name: str = "AdamW"
    beta1: float = 0.9
    weight_decay: float = 0.01


@dataclass
class Train:
    optimizer: Optimizer
    model: Model = field(default_factory=Model)
    train_steps: int = 1000
    batch_size: int = 16


store = ConfigStore.instance()
store.store(name="schema", node=Train)
store.store(group="optimizer", name="adafactor_schema", node=Adafactor)
store.store(group="optimizer", name="adamw_schema", node=AdamW)

OmegaConf.register_new_resolver("pow", lambda base, exponent: base**exponent)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def train(config: Train) -> None:
    print("trained", json.dumps(OmegaConf.to_container(config, resolve=True), sort_keys=True))


if __name__ == "__main__":
    train()
