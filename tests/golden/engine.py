"""Runs the parity suite's cases in mtf.

python -m tests.golden.engine NUM_DEVICES CASE...    # prints the losses of each as a line of JSON
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable

import jax
import numpy as np

from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.stacking import stack_layers, unstack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.metrics import summarize
from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig, TrainerConfig
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from tests.conftest import with_devices
from tests.golden import cases
from tests.golden.cases import Batch, Case
from tests.small import python

Start = Callable[[str, tuple[int, ...]], np.ndarray]


def params(network: T5Config, rule: Start = cases.start) -> t5.Params:
    """Returns parameters by a rule of `cases`, stacked if the network is scanned."""
    shapes = t5.param_shapes(network)
    tree = jax.tree_util.tree_map_with_path(
        lambda path, leaf: rule("/".join(key.key for key in path), leaf.shape), shapes
    )
    return stack_layers(tree) if network.scan_layers else tree


class Engine:
    """A case in mtf on one device, or on 4 as a mesh of data 2 × model 2."""

    def __init__(self, case: Case, num_devices: int = 1, *, scan_layers: bool = False):
        self.case = case
        self.network = T5Config(**case.network, scan_layers=scan_layers)
        mesh = PartitionerConfig(num_partitions=min(2, num_devices))
        self.partitioner = PjitPartitioner.create(mesh, jax.devices()[:num_devices])
        schedule = ScheduleConfig(**case.schedule)
        self.trainer = Trainer(
            ModelConfig(self.network, **{**cases.MODEL_DEFAULTS, **case.model}),
            AdafactorConfig(schedule, **case.optimizer)
            if case.adamw is None
            else AdamWConfig(schedule, **case.adamw),
            self.partitioner,
            TrainerConfig(num_microbatches=case.num_microbatches),
        )

    def start(self) -> TrainState:
        """Returns the state at step 0."""
        shapes = self.trainer.state_shapes
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        state = dataclasses.replace(zeros, params=params(self.network))
        return jax.device_put(state, self.trainer.state_shardings)

    def train(self, state: TrainState, batches: Iterable[Batch]) -> tuple[TrainState, list[float]]:
        """Trains on batches; returns the last state and the loss of each step."""
        losses = []
        for batch in batches:
            rows = self.partitioner.global_batch(batch, cases.BATCH_SIZE)
            state, metrics = self.trainer.train_step(state, rows)
            losses.append(float(metrics["loss"]))
        return state, losses

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Returns T5X's metrics of held-out batches."""
        found = []
        for batch in cases.eval_batches(self.case.packed):
            rows = self.partitioner.global_batch(batch, cases.BATCH_SIZE)
            found.append(self.trainer.eval_step(state.params, rows))
        return summarize(found)


def flat(state: TrainState) -> dict[str, np.ndarray]:
    """Returns a state as T5X's names → arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(unstack_layers(state.state_dict()))[0]
    return {"/".join(k.key for k in path): np.asarray(leaf) for path, leaf in leaves}


def losses(num_devices: int, names: Iterable[str]) -> dict[str, list[float]]:
    """Returns the losses of cases, trained in a process with so many devices."""
    command = ("-m", "tests.golden.engine", str(num_devices), *names)
    done = python(*command, XLA_FLAGS=with_devices(num_devices), JAX_PLATFORMS="cpu")
    return dict(map(json.loads, done.stdout.splitlines()))


def main() -> None:
    """Runs the cases that the arguments name."""
    num_devices, names = int(sys.argv[1]), sys.argv[2:]
    assert jax.device_count() == num_devices
    for name in names:
        engine = Engine(cases.CASES[name], num_devices)
        found = engine.train(engine.start(), cases.batches(engine.case.packed))[1]
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main()
