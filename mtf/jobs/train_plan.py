"""What a training run would be, without allocating it (`--dry-run`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax.numpy as jnp

from mtf.models.t5 import num_parameters
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.progress import count
from mtf.training.flops import train_step_flops
from mtf.training.trainer import Trainer

if TYPE_CHECKING:
    from mtf.jobs.train import Train


def describe(job: Train) -> str:
    """See `Train.describe`."""
    partitioner = PjitPartitioner.create(job.partitioner)
    partitioner.check_batch_size(job.batch_size, job.trainer.num_microbatches)
    trainer = make_trainer(job, partitioner)
    shapes, shardings = trainer.state_shapes, trainer.state_shardings
    network = job.model.network
    lengths = job.data.task_feature_lengths
    inputs, targets = lengths["inputs"], lengths["targets"]
    flops = train_step_flops(network, job.batch_size, inputs, targets)
    mesh = partitioner.mesh

    def size(part: str) -> str:
        whole = getattr(shapes, part)
        a_device = memory.num_bytes(whole, getattr(shardings, part))
        total = memory.num_bytes(whole)
        return f"{total:,} bytes ({memory.gib(total)}; {memory.gib(a_device)} a device)"

    needed, there = sum(least_bytes(job, trainer).values()), memory.device_bytes(mesh)
    fits = f"at least {needed:,} bytes ({memory.gib(needed)}) a device"
    if there is not None:
        fits += f", of {memory.gib(there)}" + ("" if needed <= there else ": does not fit here")

    rows = [
        ("parameters", f"{num_parameters(network):,}"),
        ("parameter bytes", size("params")),
        ("optimizer state", size("param_states")),
        ("memory", fits),
        ("devices", f"{mesh.size} × {mesh.devices.flat[0].device_kind}"),
        ("mesh", " × ".join(f"{name} {n}" for name, n in mesh.shape.items())),
        (
            "batch",
            f"{job.batch_size} rows, {job.batch_size // partitioner.num_data_shards} a part"
            + (
                f", {job.trainer.num_microbatches} microbatches"
                * (job.trainer.num_microbatches > 1)
            ),
        ),
        ("lengths", f"inputs {inputs}, targets {targets}"),
        (
            "tokens a step",
            f"{job.batch_size * (inputs + targets):,} "
            f"(inputs {job.batch_size * inputs:,} + targets {job.batch_size * targets:,})",
        ),
        ("FLOPs a step", f"{count(flops)}FLOP"),
        ("train steps", f"{job.train_steps:,} (absolute)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def make_trainer(job: Train, partitioner: PjitPartitioner) -> Trainer:
    """Returns the job's trainer on a mesh."""
    return Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)


def least_bytes(job: Train, trainer: Trainer) -> dict[str, int]:
    """Returns bytes that each device needs at least in a training step, whatever the compiler does.

    Of the activations only the layers' inputs are counted, which the backward pass needs even
    where all else is computed again.
    """
    network, lengths = job.model.network, job.data.task_feature_lengths
    partitioner, shapes = trainer.partitioner, trainer.state_shapes
    rows = job.batch_size // job.trainer.num_microbatches

    def activations(length: int, layers: int) -> int:
        shape = rows, length, network.emb_dim
        sharding = partitioner.sharding(("batch", "length", "embed"), shape)
        return layers * math.prod(sharding.shard_shape(shape)) * jnp.dtype(network.dtype).itemsize

    params = memory.num_bytes(shapes.params, trainer.state_shardings.params)
    tokens = lengths["inputs"] + 2 * lengths["targets"]
    return {
        "parameters": params,
        "gradients": params,
        "optimizer state": memory.num_bytes(
            shapes.param_states, trainer.state_shardings.param_states
        ),
        "batch": job.batch_size // partitioner.num_data_shards * tokens * 4,
        "activations": activations(lengths["inputs"], network.num_encoder_layers)
        + activations(lengths["targets"], network.num_decoder_layers),
    }
