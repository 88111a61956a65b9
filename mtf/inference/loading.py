"""Loads a model from a checkpoint of mtf, T5X or Hugging Face."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from mtf.checkpoints.restore import restore_tree
from mtf.inference.opening import Opened, open_model
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.storage import AnyPath
from mtf.text.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model ready to use.

    Attributes:
      model: the network and, if known, the loss that it was trained with.
      params: parameters on the devices, in the network's dtype; stacked if
        `model.network.scan_layers`.
      vocabulary: the vocabulary that it was trained with.
      path: the checkpoint.
      step: step of the checkpoint, None if it has none.
      partitioner: the mesh and its rules.
      inputs_add_eos: whether EOS was appended to inputs in training.
    """

    model: ModelConfig
    params: t5.Params
    vocabulary: Vocabulary
    path: AnyPath
    step: int | None
    partitioner: PjitPartitioner
    inputs_add_eos: bool

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


def load_model(
    path: str | AnyPath | Opened,
    *,
    step: int | None = None,
    ema: bool = False,
    vocabulary: Vocabulary | str | None = None,
    config: str | AnyPath | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    partitioner: PjitPartitioner | None = None,
    scan_layers: bool | None = None,
) -> Loaded:
    """Reads a model onto the devices; each process reads only its own slices.

    Args:
      path: a path, or the result of `open_model`, then without `step`, `ema`, `vocabulary`
        and `config`.
      scan_layers: whether layers are scanned; None: except on CPUs, where unrolled is faster.
      …: see `mtf.load`.

    Raises:
      UserError: `path` cannot be read as a model, the config of its run is missing or describes
        another network, or its vocabulary is unknown or does not fit the embedding.
    """
    opened = path
    if not isinstance(opened, Opened):
        opened = open_model(opened, step=step, ema=ema, vocabulary=vocabulary, config=config)
    checkpoint = opened.checkpoint
    partitioner = partitioner or PjitPartitioner.create(PartitionerConfig())
    if scan_layers is None:
        scan_layers = partitioner.mesh.devices.flat[0].platform != "cpu"
    network = dataclasses.replace(opened.model.network, dtype=dtype, scan_layers=scan_layers)
    shapes = t5.param_shapes(network, stacked=scan_layers)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), shapes)
    shardings = partitioner.shardings(shapes, t5.param_axes(network, stacked=scan_layers))
    memory.check(partitioner.mesh, {"parameters": memory.num_bytes(shapes, shardings)})
    restored = restore_tree(checkpoint, {"target": shapes}, {"target": shardings})
    return Loaded(
        dataclasses.replace(opened.model, network=network),
        restored["target"],
        opened.vocabulary,
        checkpoint.path,
        checkpoint.step,
        partitioner,
        opened.inputs_add_eos,
    )
