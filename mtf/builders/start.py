"""Opens the checkpoint from which a run starts, and returns configs for the run."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from typing import Any

import fiddle as fdl

from mtf.base.environment import has_accelerator
from mtf.base.errors import conversion_as_user_errors
from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.data.text.vocabularies import ByteVocabulary, Vocabulary
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.settings import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.storage import as_path

_logger = logging.getLogger(__name__)

# An assignment map that does not restore the optimizer state of the checkpoint.
_FRESH_OPTIMIZER: tuple[tuple[str, str | None], ...] = (("state/param_states/.*", None),)
# The parameters of models with at least this many are split across devices.
_LARGE = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Start:
    """A checkpoint from which a run starts.

    Attributes:
      model: config of the checkpoint's network with the default loss.
      vocabulary: config of the checkpoint's vocabulary.
      restore: config that restores the parameters and the step but not the optimizer state.
      step: step of the checkpoint; 0 if the checkpoint does not contain a step.
      num_parameters: number of parameters.
      inputs_add_eos: whether the checkpoint was trained on inputs that end with EOS.
    """

    model: fdl.Config[ModelConfig]
    vocabulary: fdl.Config[Vocabulary]
    restore: fdl.Config[RestoreCheckpointConfig]
    step: int
    num_parameters: int
    inputs_add_eos: bool


def open_start(checkpoint: str, vocabulary: str | None = None, config: str | None = None) -> Start:
    """Reads the network settings, vocabulary and step of a checkpoint, but not its parameters.

    Args:
      checkpoint: a run directory, whose latest checkpoint is used; an mtf, T5X or Mesh TensorFlow
        checkpoint; a Hugging Face directory; or a model on the Hugging Face hub
        (`google/flan-t5-small`). Directories and checkpoints may be remote (`gs://…`).
      vocabulary: "t5", "mt5", "byt5" or the path of a SentencePiece model or tokenizer.json; None
        for the checkpoint's vocabulary.
      config: path of the config.json of a run or Hugging Face model; None to use the checkpoint's.

    Raises:
      UserError: the checkpoint cannot be read or is not a T5, or its vocabulary is unknown.
    """
    from mtf.inference.opening import open_model  # This module imports NumPy.

    opened = open_model(checkpoint, vocabulary=vocabulary, config=config)
    tensors = opened.checkpoint.tensors
    head = tensors.get("target/decoder/logits_dense/kernel")
    embedding = tensors["target/token_embedder/embedding"]
    if head is not None and head.stored and head.stored == embedding.stored:
        _logger.warning(
            "%s has no output projection, but uses the embedding, without scaling. Here, the "
            "projection begins as a copy of the embedding and is trained separately.",
            checkpoint,
        )
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


@conversion_as_user_errors()
def described_start(config: str) -> Start:
    """Returns a start with the network that a config.json of Hugging Face describes.

    Neither weights nor a vocabulary need to be there, so only a plan can be made from it. Raises
    UserError if the network is not a T5.
    """
    from conversion import mapping  # These modules import NumPy.
    from conversion.huggingface_config import read_config
    from mtf.inference.opening import network_config

    path = as_path(config)
    found = read_config(path)
    architecture = dataclasses.replace(found.architecture, logits_via_embedding=found.scaled)
    network = _as_config(network_config(architecture, **found.described))
    return Start(
        fdl.Config(ModelConfig, network=network),
        fdl.Config(ByteVocabulary),
        fdl.Config(RestoreCheckpointConfig, str(path.parent), mode="specific"),
        0,
        sum(math.prod(entry.shape) for entry in mapping.entries(architecture)),
        True,
    )


def model(start: Start, dropout_rate: float) -> fdl.Config[ModelConfig]:
    """Returns a config of the checkpoint's model with settings for training.

    The loss is the mean over the target tokens of a batch. If JAX would use a GPU or TPU on this
    machine, activations are bfloat16 and layers are scanned, otherwise they are float32 and
    unrolled. `remat_policy` is "auto".

    Args:
      start: checkpoint from which training starts.
      dropout_rate: dropout rate, which replaces that of the checkpoint.
    """
    on_accelerator = has_accelerator()
    config = copy.deepcopy(start.model)
    config.loss_normalizing_factor = "NUM_REAL_TARGET_TOKENS"
    network = config.network
    network.dropout_rate = dropout_rate
    network.dtype = "bfloat16" if on_accelerator else "float32"
    network.scan_layers = on_accelerator
    network.remat_policy = "auto"
    return config


def partitioner(start: Start) -> fdl.Config[PartitionerConfig]:
    """Returns a partitioner that splits the batch and, if the model is large, the parameters."""
    is_large = start.num_parameters >= _LARGE
    rules = {"logical_axis_rules": FULLY_SHARDED_AXIS_RULES} if is_large else {}
    return fdl.Config(PartitionerConfig, **rules)


def _as_config(settings: T5Config | Vocabulary) -> fdl.Config[Any]:
    """Returns a config of the settings without the values that equal their defaults."""
    given = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    return fdl.Config(type(settings), **given)
