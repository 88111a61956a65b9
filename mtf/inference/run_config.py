"""What a run directory says of its checkpoints that their tensors do not. Imports no jax."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.data.config import Features, TaskMixture, Text
from mtf.data.vocabularies import Vocabulary
from mtf.errors import UserError

if TYPE_CHECKING:
    from mtf.models.config import EncoderDecoderModel


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The parts of a training run's config that inference and export need.

    Attributes:
      model: network and loss.
      vocabulary: of the training data.
      inputs_add_eos: whether the inputs in training ended with end of sequence.
    """

    model: EncoderDecoderModel
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


def read_run_config(checkpoint: Path) -> RunConfig | None:
    """Reads the config of the run directory that holds a checkpoint; None where none does.

    Args:
      checkpoint: `RUN_DIR/checkpoints/checkpoint_STEP`, or any other place.

    Raises:
      UserError: there is a config that cannot be read.
    """
    folder = checkpoint.resolve().parent
    if folder.name != "checkpoints" or not (folder.parent / "config.json").is_file():
        return None
    import fiddle as fdl

    from mtf.config.run_dir import load_config

    job = load_config(folder.parent)
    data = fdl.build(job.data)
    return RunConfig(fdl.build(job.model), data.vocabulary, inputs_add_eos(data))


def inputs_add_eos(data: Features) -> bool:
    """Whether a model that is trained on this data sees inputs that end with end of sequence.

    T5's do, also where nothing is said. Prompted tasks' do not (T0 was trained so).
    """
    if isinstance(data, Text):
        return data.inputs_add_eos
    if not isinstance(data, TaskMixture):
        return True
    from mtf.tasks.mixtures import mixture

    try:
        tasks = mixture(data.mixture_or_task_name, check_version=False).tasks
    except UserError:
        return False  # Only prompted tasks need something that is not here: their templates.
    return any(task.inputs_add_eos for task, _ in tasks)
