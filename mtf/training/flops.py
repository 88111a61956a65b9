"""What a step computes, and what a device can: model FLOPs utilisation (MFU)."""

from __future__ import annotations

from mtf.models.settings import T5Config

# Dense bfloat16 peak of one device, FLOP/s, by a part of jax's device_kind (vendors' figures).
_PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("TPU v2", 22.5e12),
    ("TPU v3", 61.5e12),
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v6 lite", 918e12),
    ("TPU v6e", 918e12),
    ("TPU7x", 1153e12),
    ("H200", 989e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("V100", 125e12),
)


def peak_flops(device_kind: str) -> float | None:
    """Peak FLOP/s of one device as jax sees it; None where it is not known (a CPU, for one)."""
    for part, flops in _PEAK_FLOPS:
        if part.lower() in device_kind.lower():
            return flops
    return None


def train_step_flops(
    network: T5Config, batch_size: int, inputs_length: int, targets_length: int
) -> float:
    """FLOPs of the matrix products of one step, forward and backward, nothing recomputed.

    Two FLOPs for each multiplication and addition, and the backward pass twice the forward one.
    Causal attention counts whole.
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
