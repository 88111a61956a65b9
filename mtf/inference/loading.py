"""A model ready to use, from a checkpoint of any kind: ours, T5X's, Hugging Face's."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

import conversion
from conversion import mapping
from conversion.tokenizer import tokenizer_adds_eos
from mtf.checkpoints.restore import restore_tree
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.inference.run_config import RunConfig, assumed, read_run_config
from mtf.inference.vocabulary import checkpoint_vocabulary
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.text.remote import is_remote
from mtf.text.vocabularies import Vocabulary

_logger = logging.getLogger(__name__)


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


@dataclasses.dataclass(frozen=True)
class Opened:
    """A checkpoint of which no parameter has been read.

    Attributes:
      checkpoint: its tensors, and what describes them.
      architecture: the sizes of its network.
      run: the config of the run that wrote it, None where there is none.
      vocabulary: text to ids and back.
      inputs_add_eos: whether inputs end with end of sequence: as the run was trained, as the
        tokenizer of a Hugging Face directory does it, else T5's way, with it.
    """

    checkpoint: conversion.Checkpoint
    architecture: conversion.Architecture
    run: RunConfig | None
    vocabulary: Vocabulary
    inputs_add_eos: bool


@conversion_as_user_errors()
def open_model(
    path: str | Path,
    *,
    step: int | None = None,
    vocabulary: Vocabulary | str | None = None,
    default_vocabulary: Vocabulary | None = None,
    config: str | Path | None = None,
) -> Opened:
    """Finds out what a checkpoint is; see `load_model` for arguments and errors.

    `default_vocabulary` is for checkpoints that have none of their own, unlike those of a run.
    """
    checkpoint = conversion.open_checkpoint(_existing(path), step)
    architecture = conversion.infer_architecture(checkpoint)
    mapping.check_parameters(checkpoint, mapping.entries(architecture))
    run = read_run_config(checkpoint, config)
    of_run = None if run is None else run.vocabulary
    found = checkpoint_vocabulary(
        checkpoint, vocabulary, of_run, architecture.vocab_size, default_vocabulary
    )
    is_huggingface = checkpoint.layout == "huggingface"
    if run is not None:
        add_eos = run.inputs_add_eos
    else:
        add_eos = tokenizer_adds_eos(checkpoint.path) if is_huggingface else True
    if run is None and not is_huggingface:
        _logger.warning(
            "%s: %s. Name the config of its run with config=PATH if that is wrong.",
            checkpoint.path,
            assumed(network_config(architecture), add_eos),
        )
    return Opened(checkpoint, architecture, run, found, add_eos)


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
    """Reads a model onto the devices.

    Args:
      path: a run directory (its latest checkpoint), a `checkpoint_STEP` of ours or of T5X (both
        layouts), a directory of such, or a Hugging Face directory of T5, mT5 or ByT5; or what
        `open_model` gave, and then no `step`, `vocabulary` or `config`.
      step: which checkpoint of several; None: the latest complete one.
      vocabulary: a vocabulary, "t5", "mt5", "byt5", or a SentencePiece model file. None: that of
        the run or the Hugging Face directory; a checkpoint of the size of T5's, mT5's or ByT5's
        gets theirs, and a warning says so.
      config: a run directory or a config.json that describes the network and the data; None: that
        of the run directory or the Hugging Face directory. What a checkpoint of T5X does not tell
        is assumed, and a warning says so.
      dtype: of parameters and activations. Norms, softmax and logits are float32 in both.
      partitioner: None: all devices, each with the whole model.
      scan_layers: None: unrolled on CPU, where that is faster; else scanned.

    Raises:
      UserError: nothing at `path` can be read as a model; a run of ours wrote it and its config
        is not there, or is one of another network; its vocabulary is not known, or has
        more ids than the embedding rows (or, where it was named, far fewer); or a tensor cannot
        be read.
    """
    opened = path
    if not isinstance(opened, Opened):
        opened = open_model(opened, step=step, vocabulary=vocabulary, config=config)
    checkpoint, run = opened.checkpoint, opened.run
    partitioner = partitioner or PjitPartitioner.create(PartitionerConfig())
    if scan_layers is None:
        scan_layers = partitioner.mesh.devices.flat[0].platform != "cpu"
    described = checkpoint.described if run is None else run.described
    network = network_config(opened.architecture, **described, dtype=dtype, scan_layers=scan_layers)
    model = ModelConfig(network) if run is None else dataclasses.replace(run.model, network=network)
    return Loaded(
        model,
        _read(checkpoint, network, partitioner),
        opened.vocabulary,
        checkpoint.path,
        checkpoint.step,
        partitioner,
        opened.inputs_add_eos,
    )


def network_config(architecture: conversion.Architecture, **settings: Any) -> T5Config:
    """Returns the network of a checkpoint's sizes; `settings` are further fields of `T5Config`."""
    return T5Config(**{**dataclasses.asdict(architecture), **settings})


def _existing(path: str | Path) -> Path:
    if is_remote(str(path)):
        raise UserError(
            f"{path} is a remote address; copy the checkpoint to this machine and give its path."
        )
    path = Path(path).expanduser()
    if not path.exists():
        parent = path.parent
        names = [child.name for child in parent.iterdir()] if parent.is_dir() else []
        raise UserError(
            f"There is no model at {path}: expected a run directory, a checkpoint_STEP directory "
            f"or a Hugging Face directory.{did_you_mean(path.name, names)}"
        )
    return path


def _read(
    checkpoint: conversion.Checkpoint, network: T5Config, partitioner: PjitPartitioner
) -> t5.Params:
    """Returns the parameters on the devices; each process reads its own slices only."""
    stacked = network.scan_layers
    shapes = t5.param_shapes(network, stacked=stacked)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(network.dtype)), shapes)
    shardings = partitioner.shardings(shapes, t5.param_axes(network, stacked=stacked))
    memory.check(partitioner.mesh, {"parameters": memory.num_bytes(shapes, shardings)})

    params: t5.Params = restore_tree(checkpoint.path, {"target": shapes}, {"target": shardings})[
        "target"
    ]
    return params
