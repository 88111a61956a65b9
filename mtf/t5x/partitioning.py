"""T5X's partitioner with the recipe's mesh on CPUs, too, and checks that a job fits a mesh."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

import functools
import math
from typing import Any

import fiddle as fdl
import jax
from absl import logging
from jax.sharding import Mesh
from t5x import partitioning

from mtf.errors import UserError
from mtf.partitioning import mesh as mesh_lib
from mtf.partitioning.settings import PartitionerConfig, mesh_axes


def _partitioner(
    num_partitions: int | None, submesh: tuple[int, int, int, int] | None
) -> mesh_lib.PjitPartitioner:
    """Returns mtf's partitioner; UserError if the partitions do not divide the devices."""
    return mesh_lib.PjitPartitioner.create(
        PartitionerConfig(None if submesh else num_partitions, submesh)
    )


class PjitPartitioner(partitioning.PjitPartitioner):
    """A partitioner whose mesh on CPUs has `num_partitions` devices in the axis model.

    T5X ignores this number on CPUs, and has all devices of a process in the axis model.
    """

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh (data, model)."""
        if jax.default_backend() != "cpu":
            return super().mesh
        ours = _partitioner(self._num_partitions, self._model_parallel_submesh).mesh
        made = Mesh(ours.devices[:, 0], ("data", "model"))  # fsdp is 1
        logging.info("mesh: %s", dict(made.shape))
        return made


def check_devices(lowered: fdl.Config) -> None:
    """Raises UserError if the devices here, the batch or the network do not fit T5X's mesh.

    Unlike mtf, T5X cannot leave a dimension whole that the devices do not divide.
    """
    settings = lowered.partitioner
    ours = _partitioner(settings.num_partitions, settings.model_parallel_submesh)
    trains = hasattr(lowered, "train_dataset_cfg")
    data = lowered.train_dataset_cfg if trains else lowered.dataset_cfg
    ours.check_batch_size(
        data.batch_size, lowered.trainer_cls.num_microbatches or 1 if trains else 1
    )
    network = lowered.model.module.config
    sizes = {
        "vocab": ("vocab_size", network.vocab_size),
        "mlp": ("mlp_dim", network.mlp_dim),
        "heads": ("num_heads", network.num_heads),
        "joined_kv": ("num_heads × head_dim", network.num_heads * network.head_dim),
    }
    rules: dict[str, Any] = {}
    for name, wanted in fdl.build(settings.logical_axis_rules):
        rules.setdefault(name, wanted)
    problems = []
    for axis, (field, size) in sizes.items():
        names = mesh_axes(rules.get(axis))
        parts = math.prod(ours.mesh.shape[name] for name in names)
        if size % parts:
            problems.append(f"\n  {field} = {size}: split over the {parts} devices of {names[0]}")
    if problems:
        raise UserError(
            "T5X cannot split this network over the mesh, because the devices do not divide:"
            f"{''.join(problems)}\nSet partitioner.num_partitions to a number that divides them."
        )
