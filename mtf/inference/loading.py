"""Loads a model from an mtf, T5X or Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from mtf.base.progress import waiting
from mtf.checkpoints.restore import restore_tree
from mtf.inference.opening import Opened
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.types import Params
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner


@dataclasses.dataclass(frozen=True)
class Loaded(Opened):
    """A checkpoint whose parameters are on the devices.

    Attributes:
      params: parameters in the network's dtype; stacked if `model.network.scan_layers` is True.
      partitioner: the device mesh and the partitioning rules.
    """

    params: Params
    partitioner: PjitPartitioner

    def predictor(
        self, batch_size: int, max_inputs_length: int, max_targets_length: int
    ) -> Predictor:
        """Returns a `Predictor` of this model."""
        return Predictor(
            *(self.model, self.params, self.vocabulary, self.partitioner),
            batch_size=batch_size,
            max_inputs_length=max_inputs_length,
            max_targets_length=max_targets_length,
        )


def describe(opened: Opened) -> str:
    """Describes a checkpoint by its path, number of parameters and vocabulary size."""
    size, ids = t5.num_parameters(opened.model.network), opened.vocabulary.vocab_size
    return f"{opened.checkpoint.path}, {size:,} parameters, vocabulary of {ids:,} ids"


def load_model(
    opened: Opened,
    dtype: Literal["float32", "bfloat16"],
    partitioner: PjitPartitioner,
    *,
    progress: bool = True,
) -> Loaded:
    """Loads a model onto the devices; each process reads only the slices that its devices hold.

    Layers are scanned except on CPUs, where scanning is slower. `progress` is whether to show that
    reading takes long.
    """
    scan_layers = partitioner.mesh.devices.flat[0].platform != "cpu"
    network = dataclasses.replace(opened.model.network, dtype=dtype, scan_layers=scan_layers)
    shapes = t5.param_shapes(network, stacked=scan_layers)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), shapes)
    shardings = partitioner.shardings(shapes, t5.param_axes(network, stacked=scan_layers))
    memory.check(partitioner.mesh, {"parameters": memory.num_bytes(shapes, shardings)})
    shown = progress and jax.process_index() == 0
    with waiting(f"reading {opened.checkpoint.path}", shown=shown):
        restored = restore_tree(opened.checkpoint, {"target": shapes}, {"target": shardings})
    model = dataclasses.replace(opened.model, network=network)
    values = {**vars(opened), "model": model}
    return Loaded(**values, params=restored["target"], partitioner=partitioner)
