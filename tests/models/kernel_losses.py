"""Prints the losses of one training with each way to compute attention, as JSON.

Packed rows of the parity suite, padded to the lengths that the kernels need.
"""

from __future__ import annotations

import json

import jax
import numpy as np

from tests.golden import cases
from tests.golden.engine import Engine

LENGTH = 128
NETWORK = {**cases.T5_1_1, "num_heads": 4, "head_dim": 64, "dropout_rate": 0.1}


def losses(attention: str, num_devices: int) -> list[float]:
    """Losses on one device, or on 4 as a mesh of data 2 × model 2."""
    network = {**NETWORK, "attention": attention, "remat_policy": "minimal"}
    ours = Engine(cases.Case(network=network, packed=True), num_devices, scan_layers=True)
    batches = [
        {name: np.pad(x, ((0, 0), (0, LENGTH - x.shape[1]))) for name, x in batch.items()}
        for batch in cases.batches(packed=True)
    ]
    return ours.train(ours.start(), batches)[1]


def main() -> None:
    """Trains in three ways."""
    assert jax.device_count() == 4
    ways = (("xla", 1), ("pallas", 1), ("pallas", 4))
    print(json.dumps([losses(*way) for way in ways]))


if __name__ == "__main__":
    main()
