"""The reference runs of T5X: how to start from them, and what to compare with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import conversion
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.stacking import unstack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import AdafactorConfig, ScheduleConfig
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from tests.conftest import GOLDEN

NETWORK = T5Config(
    vocab_size=384,
    emb_dim=64,
    num_heads=4,
    head_dim=16,
    num_encoder_layers=2,
    num_decoder_layers=2,
    mlp_dim=128,
    dropout_rate=0.0,
    dtype="float32",
)
MIN_DIM_SIZE_TO_FACTOR = {"const_legacy": 128, "factored_legacy": 32}


def make_trainer(variant: str, *, scan_layers: bool) -> Trainer:
    """The trainer with a reference run's settings, on one device."""
    network = dataclasses.replace(NETWORK, scan_layers=scan_layers)
    optimizer = AdafactorConfig(
        ScheduleConfig("constant", 1e-3), min_dim_size_to_factor=MIN_DIM_SIZE_TO_FACTOR[variant]
    )
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    return Trainer(ModelConfig(network), optimizer, partitioner)


def start(variant: str, trainer: Trainer) -> TrainState:
    """The reference run's state at step 0."""
    return trainer.restore_state(GOLDEN / variant / "checkpoint_0")


def batches(variant: str) -> Iterator[dict[str, np.ndarray]]:
    """The reference run's 40 batches in order."""
    with np.load(GOLDEN / variant / "batches.npz") as arrays:
        for step in range(40):
            names = [name for name in arrays.files if name.startswith(f"{step}/")]
            yield {name.split("/", 1)[1]: arrays[name] for name in names}


def losses(variant: str) -> list[float]:
    """The reference run's loss of each step."""
    return json.loads((GOLDEN / variant / "losses.json").read_text())["loss"]


def flat(state: TrainState) -> dict[str, np.ndarray]:
    """A state under T5X's names."""
    leaves = jax.tree_util.tree_flatten_with_path(unstack_layers(state.state_dict()))[0]
    return {"/".join(k.key for k in path): np.asarray(leaf) for path, leaf in leaves}


def final(variant: str) -> dict[str, Any]:
    """The reference run's state at step 40 under T5X's names."""
    checkpoint = conversion.open_checkpoint(GOLDEN / variant / "checkpoint_40")
    return {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
