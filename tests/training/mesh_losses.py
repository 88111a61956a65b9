"""Prints the losses of one training on every mesh of eight devices, as JSON.

Each key is "(data, fsdp, model),microbatches,scanned,loss normalisation".
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from typing import Any

import jax
import numpy as np

from mtf.data.examples import Example
from mtf.data.packing import to_batch
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import (
    FULLY_SHARDED_AXIS_RULES,
    LOGICAL_AXIS_RULES,
    PartitionerConfig,
)
from mtf.training import settings
from mtf.training.trainer import Trainer
from tests import made_up

BATCH_SIZE = 32
SIZES = (1, 2, 4, 8)
ADAFACTOR = settings.AdafactorConfig(
    settings.ScheduleConfig("constant", 0.01),
    min_dim_size_to_factor=8,
    global_norm_clip_threshold=1.0,
)
# Unlike the standard ones in parameters, activations and batches.
RULES = (
    ("batch", "data"),
    ("mlp", "fsdp"),
    ("vocab", ("fsdp", "model")),
    ("embed", "model"),
    ("joined_kv", "model"),
    ("joined_kv", "fsdp"),
    ("length", "model"),
)


def ragged_batches(num_steps: int) -> list[dict[str, np.ndarray]]:
    """Packed rows whose lengths differ widely; some rows have no targets at all."""
    rng = np.random.default_rng(0)

    def row() -> list[Example]:
        sizes = [rng.integers(1, (6, 5)) for _ in range(rng.integers(0, 4))]
        return [Example(*(rng.integers(2, 64, n) for n in pair)) for pair in sizes]

    lengths = {"inputs": 16, "targets": 12}
    rows = [[row() for _ in range(BATCH_SIZE)] for _ in range(num_steps)]
    return [to_batch(each, lengths, BATCH_SIZE, pack=True) for each in rows]


@functools.cache
def _initial_state(network: T5Config) -> Any:
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    return jax.device_get(Trainer(ModelConfig(network), ADAFACTOR, partitioner).init_state())


def losses(
    mesh: tuple[int, int, int],
    num_microbatches: int,
    scanned: bool,
    rules: Any = LOGICAL_AXIS_RULES,
    **loss: Any,
) -> list[float]:
    """Losses of three steps on one mesh."""
    data, fsdp, model = mesh
    layers = 2 if scanned else 1
    network = made_up.network(
        **{"vocab_size": 64, "emb_dim": 16, "num_heads": 4, "head_dim": 8, "mlp_dim": 32},
        **{"num_encoder_layers": layers, "num_decoder_layers": layers, "scan_layers": scanned},
    )
    partitioner = PjitPartitioner.create(
        PartitionerConfig(num_partitions=model, fsdp=fsdp, logical_axis_rules=rules),
        jax.devices()[: math.prod(mesh)],
    )
    assert partitioner.mesh.shape == {"data": data, "fsdp": fsdp, "model": model}
    trainer = Trainer(
        ModelConfig(network, **loss),
        ADAFACTOR,
        partitioner,
        settings.TrainerConfig(num_microbatches=num_microbatches),
    )
    # Compiled once for all meshes, and laid out on each.
    state = jax.device_put(_initial_state(network), trainer.state_shardings)
    out = []
    for rows in ragged_batches(3):
        state, metrics = trainer.train_step(state, partitioner.global_batch(rows, BATCH_SIZE))
        out.append(float(metrics["loss"]))
    return out


ONE, EIGHT = (1, 1, 1), (2, 2, 2)
# Mesh, microbatches, scanned, loss normalisation, rules.
Way = tuple[tuple[int, int, int], int, bool, str | None, Any]


def ways() -> list[Way]:
    """All meshes; microbatches with every loss normalisation, other rules, scanned layers."""
    rules = LOGICAL_AXIS_RULES
    meshes = [mesh for mesh in itertools.product(SIZES, repeat=3) if math.prod(mesh) == 8]
    factors = (None, "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")
    return [
        *((mesh, 1, True, None, rules) for mesh in (ONE, EIGHT)),
        *((mesh, 1, False, None, rules) for mesh in meshes),
        *((ONE, n, False, factor, rules) for factor in factors for n in (1, 2, 4)),
        *((EIGHT, 4, False, factor, rules if factor else RULES) for factor in factors),
        ((4, 1, 2), 4, False, None, FULLY_SHARDED_AXIS_RULES),
    ]


def main() -> None:
    """Trains in all ways."""
    assert jax.device_count() == 8
    found = {
        f"{mesh},{microbatches},{scanned},{factor}": losses(
            mesh, microbatches, scanned, rules, loss_normalizing_factor=factor
        )
        for mesh, microbatches, scanned, factor, rules in ways()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
