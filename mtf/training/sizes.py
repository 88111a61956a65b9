"""Computes the memory and FLOPs that a training run needs, without allocating arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp

from mtf.base.host_memory import gib
from mtf.base.progress import count
from mtf.models.t5 import num_parameters
from mtf.partitioning import memory
from mtf.training.flops import train_step_flops
from mtf.training.trainer import Trainer


def state_rows(trainer: Trainer, lengths: Mapping[str, int], batch_size: int) -> dict[str, str]:
    """Returns table rows (label → text) with the parameters and the memory of a run.

    `lengths` maps "inputs" and "targets" to their sequence lengths.
    """

    def size(part: str) -> str:
        whole = getattr(trainer.state_shapes, part)
        per_device = memory.num_bytes(whole, getattr(trainer.state_shardings, part))
        total = memory.num_bytes(whole)
        return f"{total:,} bytes ({gib(total)}; {gib(per_device)} per device)"

    trained = f", of which {trainer.num_trained:,} are trained" if trainer.frozen else ""
    needed = sum(least_bytes(trainer, lengths, batch_size).values())
    return {
        "parameters": f"{num_parameters(trainer.model.network):,}{trained}",
        "parameter bytes": size("params"),
        "optimizer state": size("param_states"),
        "memory": f"at least {needed:,} bytes ({gib(needed)}) per device",
    }


def step_rows(trainer: Trainer, lengths: Mapping[str, int], batch_size: int) -> dict[str, str]:
    """Returns table rows (label → text) with the tokens and FLOPs per step; see `state_rows`."""
    inputs, targets = lengths["inputs"], lengths["targets"]
    flops = train_step_flops(trainer.model.network, batch_size, inputs, targets)
    return {
        "lengths": f"inputs {inputs}, targets {targets}",
        "tokens per step": f"{batch_size * (inputs + targets):,} "
        f"(inputs {batch_size * inputs:,} + targets {batch_size * targets:,})",
        "FLOPs per step": f"{count(flops)}FLOP",
    }


def least_bytes(trainer: Trainer, lengths: Mapping[str, int], batch_size: int) -> dict[str, int]:
    """Returns a lower bound on the memory that a training step needs on each device.

    The result maps each purpose, such as "parameters", to a number of bytes. Only the inputs of
    layers are counted as activations, because the backward pass needs them even if it recomputes
    everything else. See `state_rows` for the arguments.
    """
    network, partitioner = trainer.model.network, trainer.partitioner
    shapes, shardings = trainer.state_shapes, trainer.state_shardings

    def activations(length: int, layers: int) -> int:
        shape = batch_size // trainer.config.num_microbatches, length, network.emb_dim
        sharding = partitioner.sharding(("batch", "length", "embed"), shape)
        return layers * math.prod(sharding.shard_shape(shape)) * jnp.dtype(network.dtype).itemsize

    params = memory.num_bytes(shapes.params, shardings.params)
    tokens = lengths["inputs"] + 2 * lengths["targets"]
    return {
        "parameters": params,
        "gradients": memory.num_bytes(
            trainer.trained(shapes.params), trainer.trained(shardings.params)
        ),
        "optimizer state": memory.num_bytes(shapes.param_states, shardings.param_states),
        "average": 0 if shapes.ema is None else memory.num_bytes(shapes.ema, shardings.ema),
        "batch": batch_size // partitioner.num_data_shards * tokens * 4,
        "activations": activations(lengths["inputs"], network.num_encoder_layers)
        + activations(lengths["targets"], network.num_decoder_layers),
    }
