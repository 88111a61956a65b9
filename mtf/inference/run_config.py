"""What a run directory says of its checkpoints that their tensors do not. Imports no jax."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import conversion
from mtf.data.settings import DataConfig, TaskMixtureConfig, TextConfig
from mtf.errors import UserError
from mtf.text.vocabularies import Vocabulary

if TYPE_CHECKING:
    from mtf.models.settings import ModelConfig

CONFIG = "config.json"


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
        network = self.model.network
        return {
            "mlp_activations": network.mlp_activations,
            "dropout_rate": network.dropout_rate,
            "relative_attention_max_distance": network.relative_attention_max_distance,
        }


def read_run_config(
    checkpoint: conversion.Checkpoint, config: str | Path | None = None
) -> RunConfig | None:
    """Reads what the run that wrote a checkpoint says of its network and data.

    Args:
      checkpoint: opened. Its run's config is `RUN_DIR/config.json`, where the checkpoint is
        `RUN_DIR/checkpoints/checkpoint_STEP`.
      config: a run directory or a config.json to read instead.

    Returns:
      None where no run of ours wrote the checkpoint.

    Raises:
      UserError: the config is not there although a run of ours wrote the checkpoint, it cannot be
        read, or it describes a network of other sizes.
    """
    folder = checkpoint.path.resolve().parent
    source = Path(config).expanduser() if config is not None else folder.parent
    if config is None and not (folder.name == "checkpoints" and (source / CONFIG).is_file()):
        if (checkpoint.path / "state").is_dir() and (checkpoint.path / "data").is_dir():
            raise UserError(_missing(checkpoint.path, folder))
        return None
    import fiddle as fdl

    from mtf.config import load_config, located

    job = located(load_config(source), source if source.is_dir() else source.parent)
    if not {"model", "data"} <= set(job.__signature_info__.parameters):
        name = getattr(fdl.get_callable(job), "__name__", "?")
        raise UserError(f"{source} is the config of {name}; expected that of a training run.")
    data = fdl.build(job.data)
    run = RunConfig(fdl.build(job.model), data.vocabulary, inputs_add_eos(data))
    _check_sizes(run, checkpoint, source)
    return run


def _missing(checkpoint: Path, folder: Path) -> str:
    expected = folder.parent if folder.name == "checkpoints" else folder / "RUN"
    return (
        f"{checkpoint} was written by a training run, whose config is not there; expected "
        f"{expected / CONFIG}. The tensors do not tell the network's activations, its dropout, the "
        "reach of its position biases, its vocabulary, or whether inputs end with end of sequence. "
        "Put the file back (`python -m mtf.run RECIPE … --print json` prints it), or name one: "
        "--config PATH of mtf.convert, config=PATH of mtf.load."
    )


def _check_sizes(run: RunConfig, checkpoint: conversion.Checkpoint, source: Path) -> None:
    there, network = conversion.infer_architecture(checkpoint), run.model.network
    names = [field.name for field in dataclasses.fields(there) if field.name != "mlp_activations"]
    differ = [
        f"{name} {getattr(network, name)}, there {getattr(there, name)}"
        for name in names
        if getattr(network, name) != getattr(there, name)
    ]
    if (len(network.mlp_activations) > 1) != there.gated:
        differ.append(f"mlp_activations {network.mlp_activations}, there {there.mlp_activations}")
    if differ:
        raise UserError(
            f"{source} describes another network than that of {checkpoint.path}: "
            f"{'; '.join(differ)}."
        )


def assumed(network: Any, add_eos: bool) -> str:
    """Says what is taken for granted of a checkpoint that no run of ours and no file describes.

    Args:
      network: has `mlp_activations`, `relative_attention_max_distance` and `dropout_rate`.
      add_eos: whether inputs are taken to end with end of sequence.
    """
    activations = " × ".join(network.mlp_activations)
    return (
        "The checkpoint does not say, so it is assumed as published: activations "
        f"{activations}, relative_attention_max_distance "
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
