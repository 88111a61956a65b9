"""Prints what is decoded on meshes of eight devices, as JSON. Run by test_mesh.py.

python -m tests.decoding.mesh_tokens few|every
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import Any

import jax
import numpy as np

from mtf.decoding.generate import generate
from mtf.decoding.settings import DecodingConfig
from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.models.stacking import stack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig

NETWORK = T5Config(
    vocab_size=64,
    emb_dim=16,
    num_heads=4,
    head_dim=8,
    num_encoder_layers=1,
    num_decoder_layers=2,
    mlp_dim=32,
    dropout_rate=0.0,
    dtype="float32",
    scan_layers=False,
)
METHODS = {
    "greedy": DecodingConfig(max_length=6),
    "sample": DecodingConfig(method="sample", max_length=6, num_return=2, top_p=0.9),
    "beam": DecodingConfig(method="beam", max_length=6, num_return=4),
}
FEW = ((1, 1, 1), (2, 2, 2))
EVERY = (*FEW, (8, 1, 1), (1, 2, 4))


def decode(mesh: tuple[int, int, int], params: t5.Params, stacked: bool) -> dict[str, Any]:
    """Tokens of every method on one mesh (data, fsdp, model)."""
    _, fsdp, model = mesh
    partitioner = PjitPartitioner.create(
        PartitionerConfig(num_partitions=model, fsdp=fsdp), jax.devices()[: math.prod(mesh)]
    )
    if stacked:
        params = stack_layers(params)
    shardings = partitioner.shardings(params, t5.param_axes(NETWORK, stacked=stacked))
    params = jax.device_put(params, shardings)
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, NETWORK.vocab_size, (8, 7)).astype(np.int32)
    inputs[3, 4:] = inputs[6, 2:] = 0
    rows = partitioner.global_batch({"inputs": inputs}, len(inputs))["inputs"]
    with jax.set_mesh(partitioner.mesh):
        network = dataclasses.replace(NETWORK, scan_layers=stacked)
        found = {name: generate(network, params, rows, d) for name, d in METHODS.items()}
    heads = {str(x.sharding.spec) for x in jax.tree.leaves(params["decoder"])}
    assert model == 1 or any("model" in spec for spec in heads)
    return {name: np.asarray(generated.tokens).tolist() for name, generated in found.items()}


def main() -> None:
    """All meshes that the argument asks for; with every mesh, stacked parameters on one."""
    assert jax.device_count() == 8
    every = {"few": False, "every": True}[sys.argv[1]]
    params = t5.init_params(NETWORK, jax.random.PRNGKey(0))
    found = {str(mesh): decode(mesh, params, stacked=False) for mesh in (EVERY if every else FEW)}
    if every:
        found["(2, 2, 2) stacked"] = decode((2, 2, 2), params, stacked=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
