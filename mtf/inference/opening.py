"""Finds a checkpoint's network and vocabulary without reading parameters or importing JAX."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import conversion
from conversion import formats, mapping
from conversion.families import SPECIAL_IDS, published
from conversion.huggingface import ModelType
from conversion.huggingface_config import described_by, is_config
from conversion.huggingface_reader import needed_files
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import (
    bytes_of,
    default_extra_ids,
    tokenizer_adds_eos,
    tokenizer_records_eos,
)
from conversion.tokenizer_file import find_tokenizer
from mtf.base.downloads import downloaded
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean, did_you_mean_file
from mtf.base.writing import T5X_CONFIG_FILE
from mtf.data.mixtures import open_mixture
from mtf.data.settings import AnyData, TaskMixtureConfig
from mtf.data.sources.hub import download_model, model_name
from mtf.data.tasks.mixtures import prompts_have_eos
from mtf.data.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    open_vocabulary,
)
from mtf.models.settings import ModelConfig, T5Config
from mtf.storage import AnyPath, as_path, is_remote

_logger = logging.getLogger(__name__)

CONFIG = "config.json"
_VOCABULARIES = (
    "vocabulary='t5', 'mt5', 'byt5' or the path of a SentencePiece model or tokenizer.json"
)
# Number of embedding rows → name of the released models with this number of rows.
_RELEASED_SIZES = {32128: "t5", 250112: "mt5", 384: "byt5"}
# An embedding may have up to this many more rows than the vocabulary has ids.
_MAX_SPARE_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Opened:
    """A checkpoint whose parameters have not been read.

    Attributes:
      checkpoint: the checkpoint, as opened by `conversion`.
      model: the network and, if known, the loss that it was trained with.
      run: config of the training run that wrote the checkpoint; None if no run wrote it.
      vocabulary: the vocabulary that the model was trained with.
      inputs_add_eos: whether the run or the tokenizer of the Hugging Face directory appends EOS to
        inputs; True for other checkpoints, as in T5.
      eos_is_known: whether a run or an export recorded `inputs_add_eos`. Otherwise, it is assumed.
    """

    checkpoint: conversion.Checkpoint
    model: ModelConfig
    run: RunConfig | None
    vocabulary: Vocabulary
    inputs_add_eos: bool
    eos_is_known: bool


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The settings of a training run that inference and export need.

    Attributes:
      model: the network and its loss.
      vocabulary: the vocabulary of the run's data.
      inputs_add_eos: whether EOS was appended to inputs.
      start: path of the checkpoint from which the run started; None if it started from scratch.
    """

    model: ModelConfig
    vocabulary: Vocabulary
    inputs_add_eos: bool
    start: str | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The settings that the tensors do not reveal, as in `conversion.Checkpoint.described`."""
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
    trust: bool = False,
) -> Opened:
    """Opens a checkpoint; see `mtf.load` for the arguments.

    `default_vocabulary` is used if neither a run nor the checkpoint itself provides a vocabulary.
    Raises UserError if `path` cannot be read as a model, if the config of its run is missing or
    describes another network, or if its vocabulary is unknown or does not fit the embedding.
    """
    checkpoint = conversion.open_checkpoint(_existing(local_source(path)), step, ema=ema)
    architecture = conversion.infer_architecture(checkpoint)
    mapping.check_parameters(checkpoint, mapping.entries(architecture))
    checkpoint, model_type = with_huggingface_config(checkpoint, config)
    run = None if model_type else read_run_config(checkpoint, config, trust)
    of_run = None if run is None else run.vocabulary
    num_rows = architecture.vocab_size
    found = checkpoint_vocabulary(checkpoint, vocabulary, of_run, num_rows, default_vocabulary)
    if run is not None:
        network = network_config(architecture, **run.described)
        model = dataclasses.replace(run.model, network=network)
        return Opened(checkpoint, model, run, found, run.inputs_add_eos, True)
    network = network_config(architecture, **checkpoint.described)
    has_tokenizer = formats.format_of(checkpoint).has_tokenizer
    add_eos = tokenizer_adds_eos(checkpoint.path) if has_tokenizer else True
    is_known = has_tokenizer and tokenizer_records_eos(checkpoint.path)
    if not (has_tokenizer or model_type):
        message = (
            "%s: %s. If any of these is wrong, pass config=PATH with the config of the run that "
            "wrote the checkpoint, or with a config.json of Hugging Face."
        )
        _logger.warning(message, checkpoint.path, assumed(network, add_eos))
    return Opened(checkpoint, ModelConfig(network), None, found, add_eos, is_known)


@conversion_as_user_errors()
def list_steps(path: str | AnyPath) -> list[int]:
    """Returns the steps of the checkpoints in a run directory or a directory of checkpoints.

    Raises UserError if `path` does not exist or is itself a checkpoint.
    """
    folder = _existing(path)
    steps = [step for step, _ in conversion.list_checkpoints(folder)] if folder.is_dir() else []
    if not steps:
        raise UserError(
            f"{path} contains no checkpoint_STEP directories, so there is no step to choose; "
            "expected a run directory or a directory of checkpoints."
        )
    return steps


def network_config(architecture: conversion.Architecture, **settings: Any) -> T5Config:
    """Returns the `T5Config` of an architecture; `settings` adds or replaces fields."""
    settings.pop("special_ids", None)  # The network masks id 0, and the vocabulary defines EOS.
    return T5Config(**{**dataclasses.asdict(architecture), **settings})


def local_source(path: str | AnyPath) -> str | AnyPath:
    """Returns the path of the local copy of a model on the hub, or any other path unchanged.

    A path `OWNER/NAME`, such as `google/flan-t5-small`, refers to a model on the Hugging Face hub
    unless the current directory contains a directory OWNER. Raises UserError if the model cannot be
    downloaded.
    """
    if isinstance(path, str) and model_name(path) is not None:
        return download_model(path, needed_files)
    return path


def open_source(
    source: str, step: int | None = None, *, ema: bool = False
) -> conversion.Checkpoint:
    """Opens a checkpoint of any format or a model on the hub; see `local_source`."""
    checkpoint = conversion.open_checkpoint(local_source(source), step, ema=ema)
    is_hub = model_name(source) is not None
    return dataclasses.replace(checkpoint, source=source) if is_hub else checkpoint


def _existing(path: str | AnyPath | None) -> AnyPath:
    if path is None:
        raise UserError(
            "The path of the model is None; expected, for example, 'runs/my-run' or "
            "'google/flan-t5-small'."
        )
    path = as_path(path)
    if not (is_remote(path) or path.exists() or formats.find(path)):
        raise UserError(
            f"There is no model at {path}; expected a run directory, a checkpoint_STEP directory, "
            "a Mesh TensorFlow checkpoint or a Hugging Face directory."
            f"{did_you_mean_file(path)}"
        )
    return path


def with_huggingface_config(
    checkpoint: conversion.Checkpoint, config: str | AnyPath | None
) -> tuple[conversion.Checkpoint, ModelType | None]:
    """Adds the settings in `config` to a checkpoint; returns the result and the model type.

    If `config` is neither a config.json of Hugging Face nor a directory that contains one, returns
    the unchanged checkpoint and None. Raises ConversionError if the sizes in `config` differ from
    those of the tensors.
    """
    path = None if config is None else as_path(config)
    if path is not None and path.is_dir():
        path /= CONFIG
    if path is None or not is_config(path):
        return checkpoint, None
    return described_by(checkpoint, path)


def read_run_config(
    checkpoint: conversion.Checkpoint, config: str | AnyPath | None = None, trust: bool = False
) -> RunConfig | None:
    """Reads the config of the run that wrote a checkpoint; returns None if no run wrote it.

    A run writes its checkpoints to `RUN_DIR/checkpoints/checkpoint_STEP` or, with T5X
    (`--engine t5x`), to `RUN_DIR/checkpoint_STEP`. `config` is a run directory or config.json to
    read instead of `RUN_DIR/config.json`; for `trust`, see `mtf.load`. Raises UserError if the
    config is missing, cannot be read or describes a network whose sizes differ from those of the
    checkpoint.
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
            f"{(source if is_run else folder / 'RUN') / CONFIG}. The tensors do not reveal "
            "the activations, the dropout rate, the maximum distance of position biases, the "
            "vocabulary, or whether inputs end with EOS. Restore the file, or pass --config PATH "
            "to mtf.convert or config=PATH to mtf.load."
        )
    import fiddle as fdl

    from mtf.config import allowed, build, load_config

    job = load_config(source, trust=trust)
    if not {"model", "data"} <= set(job.__signature_info__.parameters):
        name = getattr(fdl.get_callable(job), "__name__", "?")
        raise UserError(f"{source} is a config of {name}; expected the config of a training run.")
    data = build(job.data)
    add_eos = _recorded_eos(source if source.is_dir() else source.parent)
    if add_eos is None:
        allowed.check_fields(job.data, str(source), trust)
        add_eos = inputs_add_eos(data)
    restore = getattr(getattr(job, "checkpoint", None), "restore", None)
    start = None if restore is None else str(restore.path)
    run = RunConfig(build(job.model), data.vocabulary, add_eos, start)
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
    if differ:
        raise UserError(
            f"{source} does not match the checkpoint {checkpoint.path}: {'; '.join(differ)}. Pass "
            "the config of the run that wrote this checkpoint."
        )


def assumed(network: Any, add_eos: bool) -> str:
    """Describes the settings assumed if there is no config; `network` is a T5Config or `Export`."""
    return (
        "The checkpoint does not contain all settings. The missing settings are assumed to be as "
        "in the published T5 models: activations "
        f"{' × '.join(network.mlp_activations)}, relative_attention_max_distance "
        f"{network.relative_attention_max_distance}, dropout_rate {network.dropout_rate}, inputs "
        f"{'with' if add_eos else 'without'} EOS"
    )


def _recorded_eos(run_dir: AnyPath) -> bool | None:
    """Returns whether inputs end with EOS according to the run's data.json; None if unknown.

    Reading data.json avoids importing the module of a custom mixture.
    """
    try:
        recorded = json.loads((run_dir / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return recorded.get("inputs_add_eos") if isinstance(recorded, dict) else None


def inputs_add_eos(data: AnyData) -> bool:
    """Returns whether the inputs of training data end with EOS; most prompted inputs do not."""
    if not isinstance(data, TaskMixtureConfig):
        return data.inputs_add_eos
    try:
        return any(task.inputs_add_eos for task, _ in open_mixture(data).tasks)
    except UserError:
        if data.module is not None:
            raise
        # Without a module, the only error is that templates of prompted tasks are missing.
        return prompts_have_eos(data.mixture_or_task_name)


@conversion_as_user_errors()
def checkpoint_vocabulary(
    checkpoint: conversion.Checkpoint,
    asked: Vocabulary | str | None,
    of_run: Vocabulary | None,
    num_rows: int,
    default: Vocabulary | None = None,
) -> Vocabulary:
    """Returns the vocabulary of a checkpoint with `num_rows` embedding rows.

    The result is the first that is available: `asked`, `of_run`, the vocabulary of a Hugging Face
    directory, `default` if it fits the embedding, or the vocabulary of the released model with the
    same number of rows. Raises UserError if the vocabulary is unknown, cannot be read or has more
    ids than the embedding has rows, or if `asked` has far fewer ids than the embedding has rows.
    """
    if asked is not None:
        found = _named_vocabulary(asked, num_rows) if isinstance(asked, str) else asked
    elif of_run is not None:
        found = of_run
        try:
            found.vocab_size  # noqa: B018 - reads the model
        except UserError as error:
            raise UserError(
                f"{error} According to the config of its run, {checkpoint.path} was trained with "
                "this vocabulary. If the file has been moved, set the vocabulary to its new path."
            ) from error
    elif formats.format_of(checkpoint).has_tokenizer:
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
            f"{num_rows} rows, so the model was trained with another vocabulary. Pass the "
            "vocabulary that the model was trained with."
        )
    return found


def _named_vocabulary(name: str, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a released model or in a file.

    Adds 100 sentinels to a SentencePiece model that has none if the embedding has enough rows.
    """
    if name == "byt5" or name.endswith(".json"):
        return open_vocabulary(name)
    path = RELEASED_MODELS.get(name, name)
    file = downloaded(path, "vocabulary")
    if not file.is_file():
        known = (*RELEASED_MODELS, "byt5")
        raise UserError(
            f"vocabulary: {name!r} is neither a SentencePiece model, a tokenizer.json nor one of "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return SentencePieceVocabulary(path, default_extra_ids(read_sentencepiece(file), num_rows))


@conversion_as_user_errors()
def huggingface_vocabulary(directory: AnyPath, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face directory.

    This is the bytes of ByT5, a SentencePiece model that numbers special ids as T5 does, or the
    tokenizer in `tokenizer.json` or `vocab.json`.
    """
    found = bytes_of(directory)
    if found is not None:
        return ByteVocabulary(found.extra_ids)
    tokenizer = find_tokenizer(directory)
    if (directory / "spiece.model").is_file():
        try:
            return _named_vocabulary(str(directory / "spiece.model"), num_rows)
        except conversion.ConversionError:  # MADLAD-400 and Pile-T5
            if tokenizer is None:
                raise
    if tokenizer is not None:
        return open_vocabulary(str(tokenizer))
    raise UserError(
        f"{directory} has neither spiece.model, tokenizer.json nor ByT5's tokenizer_config.json, "
        "so its vocabulary is unknown. Copy the file from the original model, or pass "
        f"{_VOCABULARIES}."
    )


def _by_size(checkpoint: conversion.Checkpoint, num_rows: int) -> Vocabulary:
    path, name = checkpoint.path, _RELEASED_SIZES.get(num_rows)
    known = published(conversion.infer_architecture(checkpoint))
    if name is None or (known and known[0].special_ids != SPECIAL_IDS):
        reason = f"no released model has an embedding of {num_rows} rows"
        if known:
            reason = f"its sizes are those of {known[0].name}, whose vocabulary mtf does not know"
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
