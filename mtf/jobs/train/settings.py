"""The settings of a training job. Does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mtf.base.checks import AT_LEAST_ONE, check_fields
from mtf.base.errors import UserError, nearest_multiples
from mtf.checkpoints.settings import CheckpointConfig
from mtf.checkpoints.steps import owed_evaluations, saved_steps
from mtf.config import as_checked, check_types, in_run_directory, load_config
from mtf.config.run_dir import CONFIG_FILE
from mtf.data.settings import AnyData
from mtf.evaluation.settings import InferEvalConfig
from mtf.jobs.job import Job
from mtf.jobs.results import TrainResult
from mtf.models.settings import ModelConfig
from mtf.partitioning.settings import PartitionerConfig
from mtf.storage import as_path
from mtf.training.early_stopping import EarlyStopping
from mtf.training.settings import STEP, AnyOptimizer, TrainerConfig, is_optimizer
from mtf.training.trackers import Tracker

_MAY_CHANGE = {"on_resume": "may change"}


@dataclasses.dataclass(frozen=True)
class Train(Job[TrainResult]):
    """A training run, for pretraining or fine-tuning (T5X: `train.train`).

    Attributes:
      model: the network and its loss.
      data: the data for training and evaluation.
      optimizer: the optimizer with its learning rate schedule, or any optax optimizer.
      train_steps: the last step, counted from the start of pretraining. For example, to train a
        checkpoint of step 1,000,000 for 1,000 more steps, set it to 1,001,000.
      batch_size: the number of rows in a global batch.
      auto_find_batch_size: whether a new run halves `batch_size` until the compiled training step
        fits into 90% of the memory of the devices. The run stores the size that it found as
        `batch_size`, and False here. It must have only one process.
      trainer: the settings of the training step and loop, such as the number of microbatches.
      partitioner: how the model and the batch are split across devices.
      checkpoint: when to save checkpoints, and which checkpoint to start from.
      model_dir: the run directory. If it contains checkpoints, the run resumes from the latest one.
      random_seed: the seed, in [0, 2**32), for the initial parameters and for dropout. `data` has a
        separate seed.
      evaluator: the settings for evaluation by decoding held-out inputs; None to disable it.
      num_samples: the number of held-out examples that are printed with their predictions at the
        end of the run and sent to the trackers.
      trackers: the experiment trackers, such as Weights & Biases, to use besides TensorBoard.
    """

    model: ModelConfig
    data: AnyData
    optimizer: AnyOptimizer
    train_steps: int = dataclasses.field(metadata=_MAY_CHANGE)
    batch_size: int
    trainer: TrainerConfig = TrainerConfig()
    partitioner: PartitionerConfig = dataclasses.field(
        default=PartitionerConfig(), metadata=_MAY_CHANGE
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    model_dir: str | None = dataclasses.field(default=None, metadata=_MAY_CHANGE)
    random_seed: int = 0
    evaluator: InferEvalConfig | None = dataclasses.field(default=None, metadata=_MAY_CHANGE)
    num_samples: int = dataclasses.field(default=3, metadata=_MAY_CHANGE)
    auto_find_batch_size: bool = False
    trackers: Tracker | tuple[Tracker, ...] = dataclasses.field(default=(), metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        try:
            self._check_values()
        except TypeError:  # A value has the wrong type, such as "16".
            check_types(self)
            raise

    def _check_values(self) -> None:
        if not is_optimizer(self.optimizer):
            raise TypeError  # The optimizer may be the result of any function, so check its type.
        check_fields(self, AT_LEAST_ONE, "train_steps", "batch_size")
        check_fields(self, STEP, "train_steps")
        if not 0 <= self.random_seed < 2**32:
            raise UserError(
                f"random_seed must be in [0, 2**32), not {self.random_seed}. jax.random would use "
                f"only its lowest 32 bits, which are {self.random_seed % 2**32}."
            )
        check_fields(self, ("at least 0", lambda n: n >= 0), "num_samples")
        parts = self.trainer.num_microbatches
        if self.batch_size % parts:
            raise UserError(
                f"batch_size {self.batch_size} is not divisible by trainer.num_microbatches "
                f"{parts}. Nearest: {nearest_multiples(self.batch_size, parts)}."
            )
        if (
            self.trainer.trim_padding
            and self.model.loss_normalizing_factor == "NUM_TOTAL_TARGET_TOKENS"
        ):
            raise UserError(
                "trainer.trim_padding changes the number of padding tokens, which "
                "model.loss_normalizing_factor 'NUM_TOTAL_TARGET_TOKENS' counts. Set "
                "trainer.trim_padding=False, or model.loss_normalizing_factor to "
                "'NUM_REAL_TARGET_TOKENS'."
            )
        if self.trainer.trim_padding and self.model.network.attention == "pallas":
            raise UserError(
                "trainer.trim_padding cuts rows to lengths that model.network.attention='pallas' "
                "does not support. Set model.network.attention='auto'."
            )
        self._check_monitored()

    def _check_monitored(self) -> None:
        """Raises UserError if a checkpoint would be saved without the monitored metric."""
        save = self.checkpoint.save
        if save.metric_name_to_monitor is None:
            if self.trainer.early_stopping_patience is not None:
                raise UserError(
                    "trainer.early_stopping_patience needs a metric. Set "
                    "checkpoint.save.metric_name_to_monitor and checkpoint.save.metric_mode."
                )
            return
        kind = save.metric_name_to_monitor.partition("/")[0]
        inference_period = None if self.evaluator is None else self.evaluator.period
        setting, period = {
            "train": ("trainer.stats_period", self.trainer.stats_period),
            "training_eval": ("trainer.eval_period", self.trainer.eval_period),
            "inference_eval": ("evaluator.period", inference_period),
        }[kind]
        name = f"checkpoint.save.metric_name_to_monitor {save.metric_name_to_monitor!r}"
        if period is None:
            missing = "evaluator" if kind == "inference_eval" else setting
            raise UserError(
                f"{name} is not measured because {missing} is None. Set {missing}, or set "
                "checkpoint.save.metric_name_to_monitor=None."
            )
        for field, step in (
            ("period", save.period or 0),
            *(("checkpoint_steps", step) for step in save.checkpoint_steps),
        ):
            if step % period:
                raise UserError(
                    f"checkpoint.save.{field} {step} is not a multiple of {setting} {period}, so "
                    f"these checkpoints would have no {save.metric_name_to_monitor} "
                    "(checkpoint.save.metric_name_to_monitor). Nearest: "
                    f"{nearest_multiples(step, period)}."
                )

    def run(self, *, allow: Sequence[str] = ()) -> TrainResult:
        """Trains the model and stores the config in the run directory, as the command line does.

        If the run is finished (see `is_finished`), says so and writes nothing. After SIGTERM or
        Ctrl-C, completes and saves the step in progress and returns.

        Args:
          allow: names of settings, such as "batch_size", whose values may differ from the config
            stored in the run directory (`--allow`).

        Raises:
          UserError: a value has the wrong type, `model_dir` contains a run with a different config,
            or the input cannot be used. Nothing has been written.
        """
        with in_run_directory(self, allow) as job:
            result: TrainResult = self._work().run(job)
        return result

    def settled_values(self) -> dict[str, Any]:
        """Returns the batch size that `auto_find_batch_size` finds; see `mtf.config.settled`."""
        if not self.auto_find_batch_size:
            return {}
        if self.model_dir is not None and (as_path(self.model_dir) / CONFIG_FILE).is_file():
            size = load_config(self.model_dir).batch_size
        else:
            size = self._work().largest_batch_size(as_checked(self))
        return {"batch_size": size, "auto_find_batch_size": False}

    def is_finished(self) -> bool:
        """Returns whether training has ended (possibly early) and no evaluation is due."""
        steps = saved_steps(self.model_dir) if self.model_dir is not None else []
        if not steps or owed_evaluations(self.model_dir or "", steps[-1]):
            return False
        return steps[-1] >= self.train_steps or self.early_stopping(steps[-1]).is_over

    def early_stopping(self, step: int) -> EarlyStopping:
        """Returns the state of early stopping after a step."""
        patience = self.trainer.early_stopping_patience
        run_dir = as_path(self.model_dir or "")
        return EarlyStopping.resumed(run_dir, self.checkpoint.save, patience, step)

    def describe_sharding(self, num_devices: int | None = None) -> str:
        """Returns a table that shows how the parameters are split across devices.

        The devices need not be available. By default, the table is for the available devices if the
        run can use them, and otherwise for the smallest possible number of devices.
        """
        return str(self._work().describe_sharding(as_checked(self), num_devices))
