"""What a checkpoint is, before a parameter is read: its network, vocabulary, and end of sequence.

Imports no jax.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import conversion
from conversion import mapping
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import bytes_of, default_extra_ids, tokenizer_adds_eos
from mtf.data.settings import DataConfig, TaskMixtureConfig, TextConfig
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.models.settings import ModelConfig, T5Config
from mtf.text.remote import is_remote, local_copy
from mtf.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)

_logger = logging.getLogger(__name__)

CONFIG = "config.json"
# Rows of the embedding → the released models with this size.
_RELEASED_SIZES = {32128: "t5", 250112: "mt5", 384: "byt5"}
# An embedding has more rows than there are ids, so that devices divide it; at most so many more.
_MAX_SPARE_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Opened:
    """A checkpoint of which no parameter has been read.

    Attributes:
      checkpoint: its tensors, and what describes them.
      model: the network, and the loss it was trained with where that is known.
      run: the config of the run that wrote it, None where there is none.
      vocabulary: text to ids and back.
      inputs_add_eos: whether inputs end with end of sequence: as the run was trained, as the
        tokenizer of a Hugging Face directory does it, else T5's way, with it.
    """

    checkpoint: conversion.Checkpoint
    model: ModelConfig
    run: RunConfig | None
    vocabulary: Vocabulary
    inputs_add_eos: bool


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The parts of a training run's config that inference and export need.

    Attributes:
      model: network and loss.
      vocabulary: of the training data.
      inputs_add_eos: whether the inputs in training ended with end of sequence.
    """

    model: ModelConfig
    vocabulary: Vocabulary
    inputs_add_eos: bool

    @property
    def described(self) -> dict[str, Any]:
        """What no tensor shows of the network, as in `conversion.Checkpoint.described`."""
        names = ("mlp_activations", "dropout_rate", "relative_attention_max_distance")
        return {name: getattr(self.model.network, name) for name in names}


@conversion_as_user_errors()
def open_model(
    path: str | Path,
    *,
    step: int | None = None,
    vocabulary: Vocabulary | str | None = None,
    default_vocabulary: Vocabulary | None = None,
    config: str | Path | None = None,
) -> Opened:
    """Finds out what a checkpoint is; `load_model` documents the arguments and errors.

    `default_vocabulary` is for checkpoints without a run and without a vocabulary of their own.
    """
    checkpoint = conversion.open_checkpoint(_existing(path), step)
    architecture = conversion.infer_architecture(checkpoint)
    mapping.check_parameters(checkpoint, mapping.entries(architecture))
    run = read_run_config(checkpoint, config)
    of_run = None if run is None else run.vocabulary
    num_rows = architecture.vocab_size
    found = checkpoint_vocabulary(checkpoint, vocabulary, of_run, num_rows, default_vocabulary)
    if run is not None:
        network = network_config(architecture, **run.described)
        model = dataclasses.replace(run.model, network=network)
        return Opened(checkpoint, model, run, found, run.inputs_add_eos)
    network = network_config(architecture, **checkpoint.described)
    add_eos = True
    if checkpoint.layout == "huggingface":
        add_eos = tokenizer_adds_eos(checkpoint.path)
    else:
        _logger.warning(
            "%s: %s. Name the config of its run with config=PATH if that is wrong.",
            checkpoint.path,
            assumed(network, add_eos),
        )
    return Opened(checkpoint, ModelConfig(network), None, found, add_eos)


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
        names = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(
            f"There is no model at {path}: expected a run directory, a checkpoint_STEP directory "
            f"or a Hugging Face directory.{did_you_mean(path.name, names)}"
        )
    return path


def read_run_config(
    checkpoint: conversion.Checkpoint, config: str | Path | None = None
) -> RunConfig | None:
    """Reads what the run that wrote a checkpoint says of its network and data.

    Args:
      checkpoint: opened. Its run's config is `RUN_DIR/config.json`, where the checkpoint is
        `RUN_DIR/checkpoints/checkpoint_STEP`.
      config: a run directory or a config.json to read instead.

    Returns:
      None if no run of ours wrote the checkpoint.

    Raises:
      UserError: a run of ours wrote the checkpoint but its config is missing, or the config cannot
        be read or describes a network of other sizes.
    """
    folder = checkpoint.path.resolve().parent
    source = Path(config).expanduser() if config is not None else folder.parent
    is_run = folder.name == "checkpoints"
    if config is None and not (is_run and (source / CONFIG).is_file()):
        if not ((checkpoint.path / "state").is_dir() and (checkpoint.path / "data").is_dir()):
            return None
        raise UserError(
            f"{checkpoint.path} was written by a training run, whose config is not there; expected "
            f"{(source if is_run else folder / 'RUN') / CONFIG}. The tensors do not tell the "
            "network's activations, its dropout, the reach of its position biases, its vocabulary, "
            "or whether inputs end with end of sequence. Put the file back (`python -m mtf.run "
            "RECIPE … --print json` prints it), or name one: --config PATH of mtf.convert, "
            "config=PATH of mtf.load."
        )
    import fiddle as fdl

    from mtf.config import load_config, located

    job = located(load_config(source), source if source.is_dir() else source.parent)
    if not {"model", "data"} <= set(job.__signature_info__.parameters):
        name = getattr(fdl.get_callable(job), "__name__", "?")
        raise UserError(f"{source} is the config of {name}; expected that of a training run.")
    data = fdl.build(job.data)
    run = RunConfig(fdl.build(job.model), data.vocabulary, inputs_add_eos(data))
    _check_sizes(run.model.network, checkpoint, source)
    return run


def _check_sizes(network: T5Config, checkpoint: conversion.Checkpoint, source: Path) -> None:
    there = conversion.infer_architecture(checkpoint)
    differ = [
        f"{name} {getattr(network, name)}, there {value}"
        for name, value in dataclasses.asdict(there).items()
        if name != "mlp_activations" and getattr(network, name) != value
    ]
    if (len(network.mlp_activations) > 1) != there.gated:
        differ.append(f"mlp_activations {network.mlp_activations}, there {there.mlp_activations}")
    if differ:
        raise UserError(
            f"{source} describes another network than that of {checkpoint.path}: "
            f"{'; '.join(differ)}."
        )


def assumed(network: Any, add_eos: bool) -> str:
    """Says what is assumed of a checkpoint that no run of ours and no file describes.

    Args:
      network: has `mlp_activations`, `relative_attention_max_distance` and `dropout_rate`.
      add_eos: whether inputs are taken to end with end of sequence.
    """
    return (
        "The checkpoint does not say, so it is assumed as published: activations "
        f"{' × '.join(network.mlp_activations)}, relative_attention_max_distance "
        f"{network.relative_attention_max_distance}, dropout_rate {network.dropout_rate}, inputs "
        f"{'with' if add_eos else 'without'} end of sequence"
    )


def inputs_add_eos(data: DataConfig) -> bool:
    """Returns whether a model trained on this data sees inputs that end with end of sequence.

    T5's do, also where nothing is said. Prompted tasks' do not (T0 was trained so).
    """
    if isinstance(data, TextConfig):
        return data.inputs_add_eos
    if not isinstance(data, TaskMixtureConfig):
        return True
    from mtf.tasks.mixtures import mixture

    try:
        tasks = mixture(data.mixture_or_task_name, check_version=False).tasks
    except UserError:
        return False  # Only prompted tasks need something that is not here: their templates.
    return any(task.inputs_add_eos for task, _ in tasks)


@conversion_as_user_errors()
def checkpoint_vocabulary(
    checkpoint: conversion.Checkpoint,
    asked: Vocabulary | str | None,
    of_run: Vocabulary | None,
    num_rows: int,
    default: Vocabulary | None = None,
) -> Vocabulary:
    """Returns the vocabulary asked for, else the run's or the directory's own, else a guess.

    Without a vocabulary of its own, a checkpoint is taken to have `default`, or else that of the
    released model with the same number of embedding rows, `num_rows`.

    Raises:
      UserError: none is known, it cannot be read, or it has more ids than rows,
        or, if it was named, far fewer.
    """
    if asked is not None:
        found = _named_vocabulary(asked, num_rows) if isinstance(asked, str) else asked
    elif of_run is not None:
        found = of_run
        try:
            found.vocab_size  # noqa: B018 - reads the model
        except UserError as error:
            raise UserError(
                f"{error} {checkpoint.path} was trained with it, by its run's config; if it lies "
                "elsewhere, name it with vocabulary=PATH."
            ) from error
    elif checkpoint.layout == "huggingface":
        try:
            found = huggingface_vocabulary(checkpoint.path, num_rows)
        except UserError:
            if default is None:
                raise
            found = default
    else:
        found = default or _by_size(checkpoint.path, num_rows)
    num_ids = found.vocab_size
    if num_ids > num_rows or (asked is not None and num_rows - num_ids > _MAX_SPARE_ROWS):
        raise UserError(
            f"The vocabulary has {num_ids} ids, but {checkpoint.path} has an embedding of "
            f"{num_rows} rows: it was trained with another vocabulary."
        )
    return found


def _named_vocabulary(name: str, num_rows: int) -> Vocabulary:
    """Returns the vocabulary "t5", "mt5" (downloaded at first use), "byt5", or of a file.

    A model without room for T5's 100 sentinels, or with sentinels among its pieces, gets none.
    """
    if name == "byt5":
        return ByteVocabulary()
    path = RELEASED_MODELS.get(name, name)
    file = local_copy(path) if is_remote(path) else Path(path).expanduser()
    if not file.is_file():
        known = (*RELEASED_MODELS, "byt5")
        raise UserError(
            f"vocabulary: {name!r} is neither a SentencePiece model file nor one of "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return SentencePieceVocabulary(path, default_extra_ids(read_sentencepiece(file), num_rows))


@conversion_as_user_errors()
def huggingface_vocabulary(directory: Path, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face directory: its `spiece.model`, or ByT5's bytes.

    Raises:
      UserError: it has neither, or a file cannot be read; says what to do.
    """
    found = bytes_of(directory)
    if found is not None:
        return ByteVocabulary(found.extra_ids)
    if (directory / "spiece.model").is_file():
        return _named_vocabulary(str(directory / "spiece.model"), num_rows)
    raise UserError(
        f"{directory} has no spiece.model (nor ByT5's tokenizer_config.json), so its vocabulary is "
        "not known. Copy it there from the model it was made of, or name it with vocabulary=: "
        "'t5', 'mt5', 'byt5' or a SentencePiece model file."
    )


def _by_size(path: Path, num_rows: int) -> Vocabulary:
    name = _RELEASED_SIZES.get(num_rows)
    if name is None:
        raise UserError(
            f"The vocabulary of {path} is not known: it is in no run directory, and no released "
            f"model has an embedding of {num_rows} rows. Name it with vocabulary=: 't5', 'mt5', "
            "'byt5' or a SentencePiece model file."
        )
    _logger.warning(
        "%s has an embedding of %d rows, so its vocabulary is taken to be %s's; name another with "
        "vocabulary=.",
        path,
        num_rows,
        name,
    )
    return _named_vocabulary(name, num_rows)
