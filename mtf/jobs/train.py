"""The training job. Imports no jax until it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from mtf.checkpoints.settings import CheckpointConfig
from mtf.checkpoints.steps import owed_evaluations, saved_steps
from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextCorporaConfig, TextFilesConfig
from mtf.errors import UserError
from mtf.evaluation.settings import InferEvalConfig
from mtf.jobs.results import TrainResult, train_result
from mtf.models.settings import ModelConfig
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import MAX_STEP, AdafactorConfig, AdamWConfig, TrainerConfig

_MAY_CHANGE = {"on_resume": "may change"}


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a model: pretraining and fine-tuning alike (T5X: `train.train`).

    Attributes:
      model: the network and its loss.
      data: what to train on.
      optimizer: with its learning rate schedule.
      train_steps: the last step, absolute: a checkpoint of step 1,000,000 trained for 1,000 more
        has 1,001,000.
      batch_size: sequences (packed rows) in a global batch.
      trainer: microbatches, and how often to report and evaluate.
      partitioner: how model and batch are spread over devices.
      checkpoint: when to save, and what to start from.
      model_dir: the run directory. If it has checkpoints, the run continues from the latest.
      random_seed: of initial parameters and dropout, in [0, 2**32); the data has its own.
      evaluator: decoding of held-out inputs every now and then; None: none.
      num_samples: held-out examples to show with their predictions at the end.
    """

    model: ModelConfig
    data: TextFilesConfig | TextCorporaConfig | HubStreamConfig | TaskMixtureConfig
    optimizer: AdafactorConfig | AdamWConfig
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

    def __post_init__(self) -> None:
        try:
            self._check_values()
        except TypeError:  # Some value cannot even be compared, such as "16".
            from mtf.config import check_types

            check_types(self)
            raise

    def _check_values(self) -> None:
        for field in ("train_steps", "batch_size"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} must be at least 1, not {getattr(self, field)}.")
        if self.train_steps > MAX_STEP:
            raise UserError(f"train_steps must be less than 2**31, not {self.train_steps}.")
        if not 0 <= self.random_seed < 2**32:
            raise UserError(
                f"random_seed must be in [0, 2**32), not {self.random_seed}: jax.random uses 32 "
                f"bits of it. Those of {self.random_seed} are {self.random_seed % 2**32}."
            )
        if self.num_samples < 0:
            raise UserError(f"num_samples must not be negative, not {self.num_samples}.")
        parts = self.trainer.num_microbatches
        if self.batch_size % parts:
            below = self.batch_size // parts * parts
            near = " or ".join(str(n) for n in (below, below + parts) if n)
            raise UserError(
                f"batch_size {self.batch_size} is not divisible by "
                f"trainer.num_microbatches {parts}. Nearest: {near}."
            )
        restore = self.checkpoint.restore
        if restore is not None and restore.mode == "all":
            raise UserError(
                "checkpoint.restore.mode 'all' is for evaluation; training starts from one "
                "checkpoint: 'latest' or 'specific'."
            )
        self._check_monitored()

    def _check_monitored(self) -> None:
        """Refuses steps that are saved, but at which the monitored metric is not measured."""
        save = self.checkpoint.save
        if save.metric_name_to_monitor is None:
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
            raise UserError(f"{name} is not measured: {missing} is None.")
        saved = [("period", save.period)] if save.period is not None else []
        for field, step in [*saved, *(("checkpoint_steps", s) for s in save.checkpoint_steps)]:
            if step % period:
                below = step // period * period
                near = " or ".join(str(n) for n in (below, below + period) if n)
                raise UserError(
                    f"checkpoint.save.{field} {step} is not a multiple of {setting} {period}, so "
                    f"{name} would not be known of checkpoints. Nearest: {near}."
                )

    def run(self, *, allow: Sequence[str] = ()) -> TrainResult:
        """Trains, and stores the config in the run directory, as the command line does.

        Args:
          allow: paths, such as "batch_size", whose values may differ from those that the run
            directory was started with (`--allow`).

        Returns:
          The last step, metrics, and checkpoints. A run that has reached `train_steps` before
          returns at once and writes nothing.

        Raises:
          UserError: a value has the wrong type, `model_dir` holds a run of another config, or the
            input cannot be used. Nothing has been written.
        """
        # Needs Fiddle, which making a job does not.
        from mtf.config import in_run_directory

        with in_run_directory(self, allow) as job:
            assert job.model_dir is not None
            if job.is_finished():
                return job._already_finished()
            from mtf.jobs.train_run import run

            return run(job)

    def is_finished(self) -> bool:
        """Returns whether the run directory has a checkpoint of the last step, or of a later one.

        One that owes an evaluation, as a signal came before it, is not the end.
        """
        if self.model_dir is None:
            return False
        steps = saved_steps(self.model_dir)
        at_end = bool(steps) and steps[-1] >= self.train_steps
        return at_end and not owed_evaluations(self.model_dir, steps[-1])

    def _already_finished(self) -> TrainResult:
        assert self.model_dir is not None
        step = saved_steps(self.model_dir)[-1]
        print(
            f"{self.model_dir} is at step {step} of {self.train_steps}: nothing to train. "
            f"To go on, set train_steps: python -m mtf.run --from {self.model_dir} "
            f"--set train_steps={step + 1000}",
            flush=True,
        )
        return train_result(Path(self.model_dir), step)

    def describe(self) -> str:
        """Returns what the run would be: parameters, mesh, tokens a step, bytes. Allocates nothing.

        Raises:
          UserError: a value has the wrong type, or the devices at hand do not suit the mesh or
            the batch.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.train_plan import describe

        return describe(job)
