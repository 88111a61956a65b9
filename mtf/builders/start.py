"""Where a run starts: a checkpoint of any layout, with the configs that its files imply."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Literal

import fiddle as fdl

from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.environment import has_accelerator
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.settings import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.text.vocabularies import Vocabulary

# The optimizer state of the checkpoint is not read.
_FRESH_OPTIMIZER: tuple[tuple[str, str | None], ...] = (("state/param_states/.*", None),)
# From this number of parameters on, a device holds only a part of them, and layers are recomputed.
_LARGE = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Start:
    """A checkpoint to start from.

    Attributes:
      model: the network of the checkpoint, with the default loss.
      vocabulary: the vocabulary of the checkpoint.
      restore: reads the parameters and the step, but not the optimizer's state.
      step: step of the checkpoint; 0 if it has none.
      num_parameters: number of parameters.
      inputs_add_eos: whether inputs of the checkpoint's training end with EOS.
    """

    model: fdl.Config[ModelConfig]
    vocabulary: fdl.Config[Vocabulary]
    restore: fdl.Config[RestoreCheckpointConfig]
    step: int
    num_parameters: int
    inputs_add_eos: bool


def open_start(checkpoint: str, vocabulary: str | None = None, config: str | None = None) -> Start:
    """Reads the sizes and the vocabulary of a checkpoint, but no parameters.

    Args:
      checkpoint: a run directory, of which the latest checkpoint is used; a checkpoint of mtf, T5X
        or Mesh TensorFlow; a Hugging Face directory; a model of the hub (`google/flan-t5-small`);
        or an address of one of these (`gs://…`).
      vocabulary: "t5", "mt5", "byt5" or a SentencePiece model; None: that of the checkpoint.
      config: config.json of a run or of Hugging Face; None: that of the checkpoint.

    Raises:
      UserError: the checkpoint cannot be read or is no T5, or its vocabulary is unknown.
    """
    from mtf.inference.opening import open_model  # Imports NumPy.

    opened = open_model(checkpoint, vocabulary=vocabulary, config=config)
    tensors = opened.checkpoint.tensors
    is_counted = "state/step" in tensors
    step = int(tensors["state/step"].read()) if is_counted else opened.checkpoint.step or 0
    restore = fdl.Config(
        RestoreCheckpointConfig,
        str(opened.checkpoint.path),
        mode="specific",
        assignment_map=_FRESH_OPTIMIZER,
        step=step,
    )
    sizes = (math.prod(tensor.shape) for tensor in opened.checkpoint.parameters().values())
    network = _as_config(opened.model.network)
    return Start(
        fdl.Config(ModelConfig, network=network),
        _as_config(opened.vocabulary),
        restore,
        step,
        sum(sizes),
        opened.inputs_add_eos,
    )


def model(
    start: Start,
    dropout_rate: float,
    dtype: Literal["float32", "bfloat16"] | None = None,
    hardware: Literal["cpu", "accelerator"] | None = None,
) -> fdl.Config[ModelConfig]:
    """Returns the model of a checkpoint, to train.

    The loss is the mean over the target tokens of a batch.

    Args:
      dropout_rate: dropout rate, whatever the checkpoint says.
      dtype: dtype of activations; None: bfloat16 with a GPU or TPU, else float32.
      hardware: whether the machine that trains has a GPU or TPU; None: as this one.
    """
    on_accelerator = has_accelerator() if hardware is None else hardware == "accelerator"
    config = copy.deepcopy(start.model)
    config.loss_normalizing_factor = "NUM_REAL_TARGET_TOKENS"
    network = config.network
    network.dropout_rate = dropout_rate
    network.dtype = dtype or ("bfloat16" if on_accelerator else "float32")
    network.scan_layers = on_accelerator
    network.remat_policy = "full" if start.num_parameters >= _LARGE else "none"
    return config


def partitioner(start: Start) -> fdl.Config[PartitionerConfig]:
    """Returns a partitioner that splits a large model over all devices, and a small one over none.

    The batch is split in both cases.
    """
    is_large = start.num_parameters >= _LARGE
    rules = {"logical_axis_rules": FULLY_SHARDED_AXIS_RULES} if is_large else {}
    return fdl.Config(PartitionerConfig, **rules)


def _as_config(settings: T5Config | Vocabulary) -> fdl.Config[Any]:
    """Returns settings as a config, without the values that are defaults."""
    given = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    return fdl.Config(type(settings), **given)
