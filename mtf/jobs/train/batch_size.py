"""Finds the largest batch that fits into the memory of the devices."""

from __future__ import annotations

import jax

from mtf.base.errors import UserError
from mtf.base.host_memory import gib
from mtf.base.progress import waiting
from mtf.data.packing import to_batch
from mtf.jobs.train.settings import Train
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.sizes import least_bytes
from mtf.training.trainer import Trainer

# The part of the memory that a training step may need; evaluations and the runtime need some, too.
_USABLE = 0.9


def largest_batch_size(job: Train) -> int:
    """Returns and prints the first of `batch_size`, `batch_size` / 2, … whose training step fits.

    The step is compiled for rows of the full length, but not run. Raises UserError if no batch that
    can be divided among the devices and microbatches fits.
    """
    partitioner = PjitPartitioner.create(job.partitioner)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    devices, size = partitioner.mesh.local_devices, job.batch_size
    available = int((memory.device_bytes(devices) or 0) * _USABLE)
    if not available:
        raise UserError(
            f"auto_find_batch_size: the memory of {devices[0].device_kind} is unknown. Set "
            "batch_size to a number."
        )
    partitioner.check_batch_size(size, job.trainer.num_microbatches)
    parts = partitioner.num_data_shards * job.trainer.num_microbatches
    while (needed := _needed_bytes(job, trainer, size, available)) > available:
        if size % (2 * parts):
            raise UserError(
                f"auto_find_batch_size: a batch of {size} needs at least {gib(needed)}, but only "
                f"{gib(available)} may be used on each device. Use a smaller model, shorter rows "
                "(data.task_feature_lengths) or more devices."
            )
        size //= 2
    print(f"batch_size {size}: a step needs {gib(needed)} of {gib(available)} on each device")
    return size


def _needed_bytes(job: Train, trainer: Trainer, batch_size: int, available: int) -> int:
    """Returns the memory of a step on each device, or a lower bound if that is too much already."""
    lengths, devices = job.data.task_feature_lengths, trainer.partitioner.mesh.local_devices
    least = sum(least_bytes(trainer, lengths, batch_size).values())
    if least > available:
        return least
    batch = jax.eval_shape(lambda: to_batch([], lengths, batch_size, job.data.pack))
    with waiting(f"compiling for a batch size of {batch_size}"):
        try:
            compiled = trainer.lower(trainer.state_shapes, batch).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return max(least, available + 1)
    return memory.peak_bytes(compiled, devices[0].platform)
