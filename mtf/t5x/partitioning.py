"""Makes T5X's partitioner use the recipe's mesh on CPUs, and checks that a job fits the mesh."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import functools

import fiddle as fdl
import jax
from absl import logging
from jax.sharding import Mesh
from t5x import partitioning

from mtf.partitioning import mesh as mesh_lib
from mtf.partitioning.settings import PartitionerConfig


def _partitioner(
    num_partitions: int | None, submesh: tuple[int, int, int, int] | None
) -> mesh_lib.PjitPartitioner:
    """Returns mtf's partitioner.

    Raises UserError if the number of devices is not a multiple of the number of partitions.
    """
    return mesh_lib.PjitPartitioner.create(
        PartitionerConfig(None if submesh else num_partitions, submesh)
    )


class PjitPartitioner(partitioning.PjitPartitioner):
    """A partitioner whose mesh axis "model" has the size `num_partitions`, even on CPUs.

    On CPUs, T5X itself ignores this number and gives the axis "model" all devices of a process.
    """

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh, with the axes "data" and "model"."""
        if jax.default_backend() != "cpu":
            return super().mesh
        ours = _partitioner(self._num_partitions, self._model_parallel_submesh).mesh
        made = Mesh(ours.devices[:, 0], ("data", "model"))  # the axis "fsdp" has size 1
        logging.info("mesh: %s", dict(made.shape))
        return made


def check_devices(lowered: fdl.Config) -> None:
    """Raises UserError if the available devices or the batch size do not fit the mesh."""
    settings = lowered.partitioner
    trains = hasattr(lowered, "train_dataset_cfg")
    data = lowered.train_dataset_cfg if trains else lowered.dataset_cfg
    _partitioner(settings.num_partitions, settings.model_parallel_submesh).check_batch_size(
        data.batch_size, lowered.trainer_cls.num_microbatches or 1 if trains else 1
    )
