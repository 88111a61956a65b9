"""A training program with NeMo-Run: dataclasses, factories of components, and a recipe.

In a module of its own, because an executor imports it in another process.
"""

import dataclasses
import json

import nemo_run as run


@dataclasses.dataclass
class Model:
    """The network.

    Args:
        num_layers: layers of the encoder and of the decoder.
        num_heads: attention heads of a layer.
        dropout_rate: probability of zeroing an activation.
    """

    num_layers: int = 2
    num_heads: int = 4
    dropout_rate: float = 0.1


@dataclasses.dataclass
class Schedule:
    """A learning rate with a linear warm-up."""

    base_learning_rate: float = 0.001
    warmup_steps: int = 100


@dataclasses.dataclass
class Optimizer:
    """What all optimizers have."""

    schedule: Schedule = dataclasses.field(default_factory=Schedule)


@dataclasses.dataclass
class Adafactor(Optimizer):
    """Adafactor."""

    decay_rate: float = 0.8


@dataclasses.dataclass
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    beta1: float = 0.9
    weight_decay: float = 0.01


@run.cli.factory
@run.autoconvert
def tiny() -> Model:
    """A network with two layers."""
    return Model(num_layers=2)


@run.cli.factory
@run.autoconvert
def adafactor(decay_rate: float = 0.8) -> Optimizer:
    """Adafactor with its schedule."""
    return Adafactor(schedule=Schedule(), decay_rate=decay_rate)


@run.cli.factory
@run.autoconvert
def adamw(beta1: float = 0.9, weight_decay: float = 0.01) -> Optimizer:
    """AdamW with its schedule."""
    return AdamW(schedule=Schedule(), beta1=beta1, weight_decay=weight_decay)


def train(model: Model, optimizer: Optimizer, train_steps: int = 1000, batch_size: int = 16):
    """Trains a network.

    Args:
        model: the network.
        optimizer: how parameters are updated.
        train_steps: the last step.
        batch_size: examples of a batch.
    """
    values = {
        "model": dataclasses.asdict(model),
        "optimizer": {"name": type(optimizer).__name__, **dataclasses.asdict(optimizer)},
        "train_steps": train_steps,
        "batch_size": batch_size,
    }
    print("trained", json.dumps(values, sort_keys=True))


@run.cli.factory(target=train)
@run.autoconvert(partial=True)
def recipe() -> run.Partial[train]:
    return run.Partial(train, model=tiny(), optimizer=adafactor())
