"""FLOPs of a step, and peak FLOP/s of devices, for model FLOPs utilization (MFU)."""

from __future__ import annotations

from mtf.models.settings import T5Config
from mtf.partitioning.chips import chip_of


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of one device; None if it is not known."""
    chip = chip_of(device_kind)
    return None if chip is None else chip.peak_flops / chip.devices


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
