"""What a training run would be, without allocating it (`--dry-run`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax

from mtf.models.t5 import num_parameters
from mtf.partitioning.mesh import Partitioning
from mtf.training.flops import train_step_flops
from mtf.training.progress import count
from mtf.training.trainer import Trainer

if TYPE_CHECKING:
    from mtf.jobs.train import Train


def describe(job: Train) -> str:
    """See `Train.describe`."""
    partitioning = Partitioning.create(job.partitioner)
    partitioning.check_batch_size(job.batch_size, job.trainer.num_microbatches)
    trainer = make_trainer(job, partitioning)
    shapes, shardings = trainer.state_shapes, trainer.state_shardings
    network = job.model.network
    lengths = job.data.task_feature_lengths
    inputs, targets = lengths["inputs"], lengths["targets"]
    flops = train_step_flops(network, job.batch_size, inputs, targets)
    mesh = partitioning.mesh

    def size(part: str) -> str:
        whole = getattr(shapes, part)
        a_device = _bytes(whole, getattr(shardings, part))
        return f"{_bytes(whole):,} bytes ({_gib(_bytes(whole))}; {_gib(a_device)} a device)"

    rows = [
        ("parameters", f"{num_parameters(network):,}"),
        ("parameter bytes", size("params")),
        ("optimizer state", size("param_states")),
        ("devices", f"{mesh.size} × {mesh.devices.flat[0].device_kind}"),
        ("mesh", " × ".join(f"{name} {n}" for name, n in mesh.shape.items())),
        (
            "batch",
            f"{job.batch_size} rows, {job.batch_size // partitioning.num_data_shards} a part"
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


def make_trainer(job: Train, partitioning: Partitioning) -> Trainer:
    """The job's trainer on a mesh."""
    return Trainer(job.model, job.optimizer, partitioning, job.trainer, job.random_seed)


def _bytes(shapes: Any, shardings: Any = None) -> int:
    """Bytes of a tree of arrays, or of one device's part of it."""
    leaves = jax.tree.leaves(shapes)
    sizes = [leaf.shape for leaf in leaves]
    if shardings is not None:
        sizes = [
            s.shard_shape(shape) for s, shape in zip(jax.tree.leaves(shardings), sizes, strict=True)
        ]
    return sum(
        math.prod(shape) * leaf.dtype.itemsize for shape, leaf in zip(sizes, leaves, strict=True)
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
