"""Prints what is decoded and scored on one and on eight devices, as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import jax
import numpy as np

from mtf.inference.decoding.generate import generate
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig
from mtf.models.stacking import stack_layers
from mtf.models.types import Params
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from tests import made_up

NETWORK = made_up.network(
    vocab_size=64, emb_dim=16, num_heads=4, head_dim=8, num_decoder_layers=2, mlp_dim=32
)
METHODS = {
    "greedy": DecodingConfig(max_length=6),
    "sample": DecodingConfig(method="sample", max_length=6, num_return=2, top_p=0.9),
    "beam": DecodingConfig(method="beam", max_length=6, num_return=4),
}
EXAMPLES = [
    ([5, 6, 7], [[8, 1], [9, 10, 11, 1]]),
    ([12] * 20, [[13, 1]]),
    ([14, 15], [[16, 17, 1], [18, 1], [19, 20, 1]]),
]


def run(mesh: tuple[int, int, int], params: Params, stacked: bool) -> dict[str, Any]:
    """Returns the tokens of every method, and scores, on a mesh (data, fsdp, model)."""
    _, fsdp, model = mesh
    partitioner = PjitPartitioner.create(
        PartitionerConfig(num_partitions=model, fsdp=fsdp), jax.devices()[: math.prod(mesh)]
    )
    if stacked:
        params = stack_layers(params)
    network = dataclasses.replace(NETWORK, scan_layers=stacked)
    predictor = Predictor(ModelConfig(network), params, None, partitioner, batch_size=4)
    params = predictor.params
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, NETWORK.vocab_size, (8, 7)).astype(np.int32)
    inputs[3, 4:] = inputs[6, 2:] = 0
    rows = partitioner.global_batch({"inputs": inputs}, len(inputs))["inputs"]
    with jax.set_mesh(partitioner.mesh):
        generated = {name: generate(network, params, rows, d) for name, d in METHODS.items()}
    heads = {str(x.sharding.spec) for x in jax.tree.leaves(params["decoder"])}
    assert model == 1 or any("model" in spec for spec in heads)
    return {
        "scores": [s.log_likelihoods.tolist() for s in predictor.log_likelihoods(EXAMPLES)],
        **{name: np.asarray(found.tokens).tolist() for name, found in generated.items()},
    }


def main() -> None:
    """Prints the results of one device, and those of eight with stacked parameters."""
    assert jax.device_count() == 8
    params = t5.init_params(NETWORK, jax.random.PRNGKey(0))
    print(json.dumps([run((1, 1, 1), params, False), run((2, 2, 2), params, True)]))


if __name__ == "__main__":
    main()
