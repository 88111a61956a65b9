"""What a training run would be, without allocating it (`--dry-run`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp

from mtf.models.t5 import num_parameters
from mtf.partitioning import memory
from mtf.progress import count
from mtf.training.flops import train_step_flops
from mtf.training.trainer import Trainer


def describe(trainer: Trainer, lengths: Mapping[str, int], batch_size: int, steps: int) -> str:
    """Returns parameters, mesh, tokens a step and bytes of a run, a line each.

    Args:
      trainer: of the run.
      lengths: of "inputs" and "targets".
      batch_size: rows of a global batch.
      steps: the last step, absolute.
    """
    network, mesh = trainer.model.network, trainer.partitioner.mesh
    inputs, targets = lengths["inputs"], lengths["targets"]

    def size(part: str) -> str:
        whole = getattr(trainer.state_shapes, part)
        a_device = memory.num_bytes(whole, getattr(trainer.state_shardings, part))
        total = memory.num_bytes(whole)
        return f"{total:,} bytes ({memory.gib(total)}; {memory.gib(a_device)} a device)"

    needed = sum(least_bytes(trainer, lengths, batch_size).values())
    there = memory.device_bytes(mesh)
    fits = f"at least {needed:,} bytes ({memory.gib(needed)}) a device"
    if there is not None:
        fits += f", of {memory.gib(there)}" + ("" if needed <= there else ": does not fit here")
    batch = f"{batch_size} rows, {batch_size // trainer.partitioner.num_data_shards} a part"
    if trainer.config.num_microbatches > 1:
        batch += f", {trainer.config.num_microbatches} microbatches"
    flops = train_step_flops(network, batch_size, inputs, targets)
    rows = {
        "parameters": f"{num_parameters(network):,}",
        "parameter bytes": size("params"),
        "optimizer state": size("param_states"),
        "memory": fits,
    }
    below = {
        "batch": batch,
        "lengths": f"inputs {inputs}, targets {targets}",
        "tokens a step": f"{batch_size * (inputs + targets):,} "
        f"(inputs {batch_size * inputs:,} + targets {batch_size * targets:,})",
        "FLOPs a step": f"{count(flops)}FLOP",
        "train steps": f"{steps:,} (absolute)",
    }
    return trainer.partitioner.describe(rows, below)


def least_bytes(trainer: Trainer, lengths: Mapping[str, int], batch_size: int) -> dict[str, int]:
    """Returns bytes that each device needs at least in a training step, whatever the compiler does.

    Of the activations only the layers' inputs count, which the backward pass needs even if it
    recomputes everything else. Arguments as for `describe`.
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
        "gradients": params,
        "optimizer state": memory.num_bytes(shapes.param_states, shardings.param_states),
        "batch": batch_size // partitioner.num_data_shards * tokens * 4,
        "activations": activations(lengths["inputs"], network.num_encoder_layers)
        + activations(lengths["targets"], network.num_decoder_layers),
    }
