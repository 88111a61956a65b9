"""A model ready to use, from a checkpoint of any kind: ours, T5X's, Hugging Face's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

import conversion
from mtf.checkpoints.restore import restore_tree
from mtf.inference.opening import Opened, open_model
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.text.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model ready to use.

    Attributes:
      model: the network, and the loss it was trained with where that is known.
      params: on the devices, stacked where `model.network.scan_layers`, in the network's dtype.
      vocabulary: text to ids and back.
      path: the checkpoint.
      step: of the checkpoint, None where it has none.
      partitioner: where the parameters lie.
      inputs_add_eos: whether inputs end with end of sequence, as they did in training.
    """

    model: ModelConfig
    params: t5.Params
    vocabulary: Vocabulary
    path: Path
    step: int | None
    partitioner: PjitPartitioner
    inputs_add_eos: bool

    def predictor(
        self, batch_size: int, max_inputs_length: int, max_targets_length: int
    ) -> Predictor:
        """Returns what scores and generates with this model; see `Predictor`."""
        return Predictor(
            self.model,
            self.params,
            self.vocabulary,
            self.partitioner,
            batch_size=batch_size,
            max_inputs_length=max_inputs_length,
            max_targets_length=max_targets_length,
        )


def load_model(
    path: str | Path | Opened,
    *,
    step: int | None = None,
    vocabulary: Vocabulary | str | None = None,
    config: str | Path | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    partitioner: PjitPartitioner | None = None,
    scan_layers: bool | None = None,
) -> Loaded:
    """Reads a model onto the devices. `mtf.load` documents the arguments, but these:

    Args:
      path: also what `open_model` gave, and then no `step`, `vocabulary` or `config`.
      partitioner: None: all devices, each with the whole model.
      scan_layers: None: unrolled on CPU, where that is faster; else scanned.

    Raises:
      UserError: nothing at `path` can be read as a model; a run of ours wrote it and its config
        is missing, or is one of another network; its vocabulary is not known, or has more ids than
        the embedding has rows (or, if it was named, far fewer); or a tensor cannot be read.
    """
    opened = path
    if not isinstance(opened, Opened):
        opened = open_model(opened, step=step, vocabulary=vocabulary, config=config)
    checkpoint = opened.checkpoint
    partitioner = partitioner or PjitPartitioner.create(PartitionerConfig())
    if scan_layers is None:
        scan_layers = partitioner.mesh.devices.flat[0].platform != "cpu"
    network = dataclasses.replace(opened.model.network, dtype=dtype, scan_layers=scan_layers)
    return Loaded(
        dataclasses.replace(opened.model, network=network),
        _read(checkpoint, network, partitioner),
        opened.vocabulary,
        checkpoint.path,
        checkpoint.step,
        partitioner,
        opened.inputs_add_eos,
    )


def _read(
    checkpoint: conversion.Checkpoint, network: T5Config, partitioner: PjitPartitioner
) -> t5.Params:
    """Returns the parameters on the devices; each process reads its own slices only."""
    stacked = network.scan_layers
    shapes = t5.param_shapes(network, stacked=stacked)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(network.dtype)), shapes)
    shardings = partitioner.shardings(shapes, t5.param_axes(network, stacked=stacked))
    memory.check(partitioner.mesh, {"parameters": memory.num_bytes(shapes, shardings)})
    restored = restore_tree(checkpoint.path, {"target": shapes}, {"target": shardings})
    params: t5.Params = restored["target"]
    return params
