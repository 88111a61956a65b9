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
    batches = []
    for _ in range(num_steps):
        batch = {
            name: np.zeros((BATCH_SIZE, 16 if name.startswith("encoder") else 12), np.int32)
            for name in (
                "encoder_input_tokens",
                "encoder_segment_ids",
                "decoder_input_tokens",
                "decoder_target_tokens",
                "decoder_loss_weights",
                "decoder_segment_ids",
                "decoder_positions",
            )
        }
        for row in range(BATCH_SIZE):
            i = t = 0
            for segment in range(1, int(rng.integers(0, 4)) + 1):
                num_inputs, num_targets = rng.integers(1, 6), rng.integers(1, 5)
                inputs, targets = slice(i, i + num_inputs), slice(t, t + num_targets)
                batch["encoder_input_tokens"][row, inputs] = rng.integers(2, 64, num_inputs)
                batch["encoder_segment_ids"][row, inputs] = segment
                tokens = rng.integers(2, 64, num_targets)
                batch["decoder_target_tokens"][row, targets] = tokens
                batch["decoder_input_tokens"][row, t + 1 : t + num_targets] = tokens[:-1]
                batch["decoder_loss_weights"][row, targets] = 1
                batch["decoder_segment_ids"][row, targets] = segment
                batch["decoder_positions"][row, targets] = np.arange(num_targets)
                i, t = i + num_inputs, t + num_targets
        batches.append(batch)
    return batches


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
