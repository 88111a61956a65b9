"""FLOPs of a step, and peak FLOP/s of devices, for model FLOPs utilization (MFU)."""

from __future__ import annotations

import re

from mtf.models.settings import T5Config

# Pattern of jax's device_kind → dense bfloat16 peak of one device in FLOP/s (vendors' figures).
_PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite|TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite|TPU v6e": 918e12,
    "TPU7x": 1153e12,
    "H200|H100": 989e12,
    "A100": 312e12,
    "V100": 125e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of one device; None if it is not known."""
    for pattern, flops in _PEAK_FLOPS.items():
        if re.search(pattern, device_kind, re.IGNORECASE):
            return flops
    return None


def train_step_flops(
    network: T5Config, batch_size: int, inputs_length: int, targets_length: int
) -> float:
    """Returns the FLOPs of the matrix products of one step, forward and backward.

    A multiplication with an addition counts as two FLOPs, the backward pass as twice the forward
    pass, and causal attention in full. Recomputation does not count.
    """
    emb, joined = network.emb_dim, network.num_heads * network.head_dim
    mlp = (len(network.mlp_activations) + 1) * emb * network.mlp_dim
    encoder = (
        network.num_encoder_layers
        * inputs_length
        * (4 * emb * joined + mlp + 2 * inputs_length * joined)
    )
    decoder = network.num_decoder_layers * (
        targets_length * (6 * emb * joined + mlp + 2 * (targets_length + inputs_length) * joined)
        + inputs_length * 2 * emb * joined
    )
    output = targets_length * emb * network.vocab_size
    return 6.0 * batch_size * (encoder + decoder + output)
