"""Computes the FLOPs of a step and the peak FLOP/s of a device, from which the MFU is computed."""

from __future__ import annotations

from mtf.models.settings import T5Config
from mtf.partitioning.chips import chip_of


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of one device, or None if the kind of device is unknown."""
    chip = chip_of(device_kind)
    return None if chip is None else chip.peak_flops / chip.devices


def train_step_flops(
    network: T5Config, batch_size: int, inputs_length: int, targets_length: int
) -> float:
    """Returns the FLOPs of all matrix products in one forward and backward pass.

    A multiply-add counts as two FLOPs, and the backward pass counts as two forward passes.
    Recomputation in the backward pass is not counted.
    """
    return 6.0 * batch_size * forward_multiplications(network, inputs_length, targets_length)


def forward_multiplications(
    network: T5Config, inputs_length: int, targets_length: int, attention_cost: int = 1
) -> int:
    """Returns the number of multiplications in all matrix products of the forward pass of a row.

    Causal attention counts as full attention. The products of queries with keys and of attention
    weights with values count `attention_cost` times.
    """
    emb, joined = network.emb_dim, network.num_heads * network.head_dim
    mlp = (len(network.mlp_activations) + 1) * emb * network.mlp_dim
    pair = 2 * joined * attention_cost
    encoder = inputs_length * (4 * emb * joined + mlp + inputs_length * pair)
    decoder = targets_length * (6 * emb * joined + mlp + (targets_length + inputs_length) * pair)
    decoder += inputs_length * 2 * emb * joined  # keys and values of cross-attention
    output = targets_length * emb * network.vocab_size
    return network.num_encoder_layers * encoder + network.num_decoder_layers * decoder + output
