"""Finds a checkpoint's network and vocabulary without reading parameters. Imports no jax."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import conversion
from conversion import mapping
from conversion.families import SPECIAL_IDS, published
from conversion.huggingface import ModelType
from conversion.huggingface_config import described_by, is_config
from conversion.huggingface_reader import is_huggingface, needed_files
from conversion.mesh_tensorflow import find_prefix
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import (
    bytes_of,
    default_extra_ids,
    tokenizer_adds_eos,
    tokenizer_records_eos,
)
from mtf.data.settings import DataConfig, OwnDataConfig, TaskMixtureConfig, TextConfig
from mtf.downloads import downloaded
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.models.settings import ModelConfig, T5Config
from mtf.sources.hub import download_model, model_name
from mtf.storage import AnyPath, StorePath, as_path
from mtf.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)
from mtf.writing import T5X_CONFIG_FILE

_logger = logging.getLogger(__name__)

CONFIG = "config.json"
_VOCABULARIES = "vocabulary='t5', 'mt5', 'byt5' or the path of a SentencePiece model file"
# Rows of the embedding → released models of this size.
_RELEASED_SIZES = {32128: "t5", 250112: "mt5", 384: "byt5"}
# The number of rows is rounded up from the number of ids, by at most this many rows.
_MAX_SPARE_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Opened:
    """A checkpoint whose parameters have not been read.

    Attributes:
      checkpoint: the checkpoint as `conversion` opens it.
      model: the network and, if known, the loss that it was trained with.
      run: config of the training run that wrote it, if any.
      vocabulary: the vocabulary that it was trained with.
      inputs_add_eos: whether EOS is appended to inputs, by the run, or by the tokenizer of a
        Hugging Face directory; otherwise True, as for T5.
      eos_is_known: whether the run or an export says so; if not, `inputs_add_eos` is assumed.
    """

    checkpoint: conversion.Checkpoint
    model: ModelConfig
    run: RunConfig | None
    vocabulary: Vocabulary
    inputs_add_eos: bool
    eos_is_known: bool


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The parts of a training run's config that inference and export need.

    Attributes:
      model: the network and its loss.
      vocabulary: the vocabulary of its data.
      inputs_add_eos: whether inputs ended with EOS.
      start: the checkpoint from which the run started, if any.
    """

    model: ModelConfig
    vocabulary: Vocabulary
    inputs_add_eos: bool
    start: str | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The values that no tensor shows, as in `conversion.Checkpoint.described`."""
        names = ("mlp_activations", "dropout_rate", "relative_attention_max_distance")
        return {name: getattr(self.model.network, name) for name in names}


@conversion_as_user_errors()
def open_model(
    path: str | AnyPath,
    *,
    step: int | None = None,
    ema: bool = False,
    vocabulary: Vocabulary | str | None = None,
    default_vocabulary: Vocabulary | None = None,
    config: str | AnyPath | None = None,
) -> Opened:
    """Opens a checkpoint; see `load_model` for the arguments and errors.

    `default_vocabulary` is used for a checkpoint without a run and without a vocabulary.
    """
    checkpoint = conversion.open_checkpoint(_existing(local_source(path)), step, ema=ema)
    architecture = conversion.infer_architecture(checkpoint)
    mapping.check_parameters(checkpoint, mapping.entries(architecture))
    checkpoint, model_type = with_huggingface_config(checkpoint, config)
    run = None if model_type else read_run_config(checkpoint, config)
    of_run = None if run is None else run.vocabulary
    num_rows = architecture.vocab_size
    found = checkpoint_vocabulary(checkpoint, vocabulary, of_run, num_rows, default_vocabulary)
    if run is not None:
        network = network_config(architecture, **run.described)
        model = dataclasses.replace(run.model, network=network)
        return Opened(checkpoint, model, run, found, run.inputs_add_eos, True)
    network = network_config(architecture, **checkpoint.described)
    from_transformers = checkpoint.layout == "huggingface"
    add_eos = tokenizer_adds_eos(checkpoint.path) if from_transformers else True
    is_known = from_transformers and tokenizer_records_eos(checkpoint.path)
    if not (from_transformers or model_type):
        message = (
            "%s: %s. If any of these is wrong, pass config=PATH with the config of the run that "
            "wrote the checkpoint, or a config.json of Hugging Face."
        )
        _logger.warning(message, checkpoint.path, assumed(network, add_eos))
    return Opened(checkpoint, ModelConfig(network), None, found, add_eos, is_known)


@conversion_as_user_errors()
def list_steps(path: str | AnyPath) -> list[int]:
    """Returns the steps of the checkpoints in a run directory or a directory of checkpoints.

    Raises UserError if it does not exist or is itself a checkpoint.
    """
    folder = _existing(path)
    steps = [step for step, _ in conversion.list_checkpoints(folder)] if folder.is_dir() else []
    if not steps:
        raise UserError(
            f"{path} has no checkpoint_STEP directories, so there are no steps to choose; expected "
            "a run directory or a directory of checkpoints."
        )
    return steps


def network_config(architecture: conversion.Architecture, **settings: Any) -> T5Config:
    """Returns the network of an architecture; `settings` are other fields of `T5Config`."""
    settings.pop("special_ids", None)  # The network masks padding 0; the vocabulary has EOS.
    return T5Config(**{**dataclasses.asdict(architecture), **settings})


def local_source(path: str | AnyPath) -> str | AnyPath:
    """Returns a path as it is, or the copy of a model of the hub (`google/flan-t5-small`).

    A name without `hf://` is that of a model unless there is a directory of its owner's name here.
    Raises UserError if the hub cannot provide the model.
    """
    if isinstance(path, str) and model_name(path) is not None:
        return download_model(path, needed_files)
    return path


def is_for_transformers(path: str) -> bool:
    """Returns whether transformers can load a path: a model of the hub, or a local copy of one."""
    return model_name(path) is not None or is_huggingface(as_path(path))


def open_source(
    source: str, step: int | None = None, *, ema: bool = False
) -> conversion.Checkpoint:
    """Opens a checkpoint of any format, or a model of the hub; see `local_source`."""
    checkpoint = conversion.open_checkpoint(local_source(source), step, ema=ema)
    is_hub = model_name(source) is not None
    return dataclasses.replace(checkpoint, source=source) if is_hub else checkpoint


def _existing(path: str | AnyPath) -> AnyPath:
    path = as_path(path)
    if not (isinstance(path, StorePath) or path.exists() or find_prefix(path)):
        names = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(
            f"There is no model at {path}; expected a run directory, a checkpoint_STEP directory, "
            "a checkpoint of Mesh TensorFlow or a Hugging Face directory."
            f"{did_you_mean(path.name, names)}"
        )
    return path


def with_huggingface_config(
    checkpoint: conversion.Checkpoint, config: str | AnyPath | None
) -> tuple[conversion.Checkpoint, ModelType | None]:
    """Returns the checkpoint with the settings of `config`, and the type of model in it.

    `config` is a config.json of Hugging Face or a directory with one; if it is something else,
    returns the checkpoint unchanged and None. Raises ConversionError if the tensors are of other
    sizes.
    """
    path = None if config is None else as_path(config)
    if path is not None and path.is_dir():
        path /= CONFIG
    if path is None or not is_config(path):
        return checkpoint, None
    return described_by(checkpoint, path)


def read_run_config(
    checkpoint: conversion.Checkpoint, config: str | AnyPath | None = None
) -> RunConfig | None:
    """Reads the config of the run that wrote `RUN_DIR/checkpoints/checkpoint_STEP`, or None.

    A run with T5X (`--engine t5x`) writes `RUN_DIR/checkpoint_STEP`.

    `config` is a run directory or config.json to read instead of `RUN_DIR/config.json`. Raises
    UserError if the config of the run is missing, cannot be read or describes other sizes.
    """
    folder = checkpoint.path.resolve().parent
    is_t5x = (folder / T5X_CONFIG_FILE).is_file()
    is_run = is_t5x or folder.name == "checkpoints"
    source = as_path(config) if config is not None else (folder if is_t5x else folder.parent)
    if config is None and not (is_run and (source / CONFIG).is_file()):
        if not ((checkpoint.path / "state").is_dir() and (checkpoint.path / "data").is_dir()):
            return None
        raise UserError(
            f"{checkpoint.path} was written by a training run whose config is missing; expected "
            f"{(source if is_run else folder / 'RUN') / CONFIG}. The tensors do not show the "
            "activations, dropout rate, maximum distance of position biases, vocabulary, or "
            "whether inputs end in EOS. Restore the file (`python -m mtf.run RECIPE … --print "
            "json` prints it), or pass --config PATH to mtf.convert or config=PATH to mtf.load."
        )
    import fiddle as fdl

    from mtf.config import load_config, located

    job = located(load_config(source), source if source.is_dir() else source.parent)
    if not {"model", "data"} <= set(job.__signature_info__.parameters):
        name = getattr(fdl.get_callable(job), "__name__", "?")
        raise UserError(f"{source} is a config of {name}; expected the config of a training run.")
    data = fdl.build(job.data)
    add_eos = _recorded_eos(source if source.is_dir() else source.parent)
    if add_eos is None:
        add_eos = inputs_add_eos(data)
    restore = getattr(getattr(job, "checkpoint", None), "restore", None)
    start = None if restore is None else str(restore.path)
    run = RunConfig(fdl.build(job.model), data.vocabulary, add_eos, start)
    _check_sizes(run.model.network, checkpoint, source)
    return run


def _check_sizes(network: T5Config, checkpoint: conversion.Checkpoint, source: AnyPath) -> None:
    there = conversion.infer_architecture(checkpoint)
    differ = [
        f"{name} is {getattr(network, name)} in the config, but {value} in the checkpoint"
        for name, value in dataclasses.asdict(there).items()
        if name != "mlp_activations" and getattr(network, name) != value
    ]
    if (len(network.mlp_activations) > 1) != there.gated:
        shown = [" × ".join(each.mlp_activations) for each in (network, there)]
        differ.append(
            f"mlp_activations is {shown[0]} in the config, but {shown[1]} in the checkpoint"
        )
    expected = mapping.entries(
        conversion.Architecture(
            **{name: getattr(network, name) for name in dataclasses.asdict(there)}
        )
    )
    found = {name: tensor.shape for name, tensor in checkpoint.parameters().items()}
    differ += [
        f"target/{entry.t5x} has shape {found.get(entry.t5x, 'none')}, but the config implies "
        f"{entry.shape}"
        for entry in expected
        if differ and found.get(entry.t5x) != entry.shape
    ][:1]
    if differ:
        raise UserError(
            f"{source} does not match the checkpoint {checkpoint.path}: {'; '.join(differ)}. Pass "
            "the config of the run that wrote this checkpoint."
        )


def assumed(network: Any, add_eos: bool) -> str:
    """Describes the values assumed for a checkpoint without config, of a `T5Config` or `Export`."""
    return (
        "The checkpoint does not contain all settings. These are assumed, as in the published T5 "
        "models: activations "
        f"{' × '.join(network.mlp_activations)}, relative_attention_max_distance "
        f"{network.relative_attention_max_distance}, dropout_rate {network.dropout_rate}, inputs "
        f"{'with' if add_eos else 'without'} EOS"
    )


def _recorded_eos(run_dir: AnyPath) -> bool | None:
    """Returns whether inputs end with EOS according to the run's data.json; None: unknown.

    So a mixture of the user's own is known without its module.
    """
    try:
        recorded = json.loads((run_dir / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return recorded.get("inputs_add_eos") if isinstance(recorded, dict) else None


def inputs_add_eos(data: DataConfig) -> bool:
    """Returns whether inputs of this training data end with EOS; most prompted tasks' do not."""
    if isinstance(data, TextConfig | OwnDataConfig):
        return data.inputs_add_eos
    if not isinstance(data, TaskMixtureConfig):
        return True
    from mtf.loaders import open_mixture
    from mtf.tasks.mixtures import prompts_have_eos

    if data.module is not None:
        return any(task.inputs_add_eos for task, _ in open_mixture(data).tasks)
    try:
        tasks = open_mixture(data, check_version=False).tasks
    except UserError:  # Only prompted tasks fail, if their templates are missing.
        return prompts_have_eos(data.mixture_or_task_name)
    return any(task.inputs_add_eos for task, _ in tasks)


@conversion_as_user_errors()
def checkpoint_vocabulary(
    checkpoint: conversion.Checkpoint,
    asked: Vocabulary | str | None,
    of_run: Vocabulary | None,
    num_rows: int,
    default: Vocabulary | None = None,
) -> Vocabulary:
    """Returns `asked`, else the vocabulary of the run or the directory, else `default`.

    Without any of these, or if `default` has far fewer or more ids than the embedding has rows,
    returns that of the released model with `num_rows` embedding rows. Raises UserError if the
    vocabulary is unknown, cannot be read or has more ids than the embedding has rows, or if `asked`
    has far fewer ids.
    """
    if asked is not None:
        found = _named_vocabulary(asked, num_rows) if isinstance(asked, str) else asked
    elif of_run is not None:
        found = of_run
        try:
            found.vocab_size  # noqa: B018 - reads the model
        except UserError as error:
            raise UserError(
                f"{error} According to its run's config, {checkpoint.path} was trained with this "
                "vocabulary. If the file is elsewhere, pass vocabulary=PATH."
            ) from error
    elif checkpoint.layout == "huggingface":
        try:
            found = huggingface_vocabulary(checkpoint.path, num_rows)
        except UserError:
            if default is None:
                raise
            found = default
    else:
        fits = default is not None and 0 <= num_rows - default.vocab_size <= _MAX_SPARE_ROWS
        found = default if default is not None and fits else _by_size(checkpoint, num_rows)
    num_ids = found.vocab_size
    if num_ids > num_rows or (asked is not None and num_rows - num_ids > _MAX_SPARE_ROWS):
        raise UserError(
            f"The vocabulary has {num_ids} ids, but {checkpoint.path} has an embedding of "
            f"{num_rows} rows, so it was trained with another vocabulary. Pass the vocabulary of "
            "its training."
        )
    return found


def _named_vocabulary(name: str, num_rows: int) -> Vocabulary:
    """Returns a released or a file's vocabulary; adds 100 sentinels if none and there is room."""
    if name == "byt5":
        return ByteVocabulary()
    path = RELEASED_MODELS.get(name, name)
    file = downloaded(path, "vocabulary")
    if not file.is_file():
        known = (*RELEASED_MODELS, "byt5")
        raise UserError(
            f"vocabulary: {name!r} is neither a SentencePiece model file nor one of "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return SentencePieceVocabulary(path, default_extra_ids(read_sentencepiece(file), num_rows))


@conversion_as_user_errors()
def huggingface_vocabulary(directory: AnyPath, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face directory: its `spiece.model`, or ByT5's bytes."""
    found = bytes_of(directory)
    if found is not None:
        return ByteVocabulary(found.extra_ids)
    if (directory / "spiece.model").is_file():
        return _named_vocabulary(str(directory / "spiece.model"), num_rows)
    raise UserError(
        f"{directory} has neither spiece.model nor ByT5's tokenizer_config.json, so its vocabulary "
        f"is unknown. Copy the file from the original model, or pass {_VOCABULARIES}."
    )


def _by_size(checkpoint: conversion.Checkpoint, num_rows: int) -> Vocabulary:
    path, name = checkpoint.path, _RELEASED_SIZES.get(num_rows)
    known = published(conversion.infer_architecture(checkpoint))
    if name is None or (known and known[0].special_ids != SPECIAL_IDS):
        reason = f"no released model has an embedding of {num_rows} rows"
        if known:
            reason = f"the vocabulary of {known[0].name}, whose sizes it has, is not known"
        raise UserError(
            f"The vocabulary of {path} is unknown: the checkpoint is not in a run directory, and "
            f"{reason}. Pass {_VOCABULARIES}."
        )
    message = (
        "%s has an embedding of %d rows, so the vocabulary of %s is assumed. If this is wrong, "
        "pass %s."
    )
    _logger.warning(message, path, num_rows, name, _VOCABULARIES)
    return _named_vocabulary(name, num_rows)
