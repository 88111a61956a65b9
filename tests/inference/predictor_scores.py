"""Prints scores of the same examples on meshes of one and of eight devices, as JSON.

Run by test_predictor.py: python -m tests.inference.predictor_scores KEY…

Each key is "data,fsdp,model,batch size".
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np

from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.stacking import stack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig

NETWORK = T5Config(
    vocab_size=256,
    emb_dim=32,
    num_heads=2,
    head_dim=16,
    num_encoder_layers=2,
    num_decoder_layers=2,
    mlp_dim=64,
    dtype="float32",
)
MODEL = ModelConfig(NETWORK)
EOS = 1
Examples = list[tuple[list[int], list[list[int]]]]


def parameters() -> t5.Params:
    """Stacked, so that little is compiled."""
    return stack_layers(t5.init_params(NETWORK, jax.random.PRNGKey(0)))


def examples(num: int = 18) -> Examples:
    """One to five choices each, of unequal lengths."""
    rng = np.random.default_rng(0)

    def tokens(longest: int) -> list[int]:
        return rng.integers(2, 256, rng.integers(1, longest)).tolist()

    return [(tokens(33), [[*tokens(6), EOS] for _ in range(1 + i % 5)]) for i in range(num)]


def partitioner(num_devices: int, fsdp: int = 1, model: int = 1) -> PjitPartitioner:
    """A mesh of the first devices."""
    partitioner = PartitionerConfig(num_partitions=model, fsdp=fsdp)
    return PjitPartitioner.create(partitioner, jax.devices()[:num_devices])


def main() -> None:
    """Scores and prints."""
    params, data = parameters(), examples()
    found = {}
    for key in sys.argv[1:]:
        data_axis, fsdp, model, batch_size = map(int, key.split(","))
        mesh = partitioner(data_axis * fsdp * model, fsdp, model)
        predictor = Predictor(MODEL, params, None, mesh, batch_size=batch_size)
        found[key] = [s.log_likelihoods.tolist() for s in predictor.log_likelihoods(data)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
