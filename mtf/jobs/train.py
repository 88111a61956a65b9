"""The training job: its settings, and a run from its parts. Imports no jax until it runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf import signals
from mtf.checkpoints.settings import CheckpointConfig
from mtf.checkpoints.steps import CHECKPOINTS, owed_evaluations, saved_steps
from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextCorporaConfig, TextFilesConfig
from mtf.decoding.settings import DecodingConfig
from mtf.environment import write_environment
from mtf.errors import UserError, check_at_least_one, did_you_mean, nearest_multiples
from mtf.evaluation.settings import InferEvalConfig
from mtf.jobs.results import TrainResult, train_result
from mtf.models.settings import ModelConfig
from mtf.partitioning.settings import PartitionerConfig
from mtf.progress import Progress, count
from mtf.training.settings import MAX_STEP, AdafactorConfig, AdamWConfig, TrainerConfig
from mtf.writing import write_atomically

if TYPE_CHECKING:
    from mtf.data.row_streams import Evaluations
    from mtf.evaluation.infer_eval import InferenceEvaluator
    from mtf.inference.predictor import Predictor
    from mtf.models.t5 import Params
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.training.trainer import Trainer

_MAY_CHANGE = {"on_resume": "may change"}


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains a model: pretraining and fine-tuning alike (T5X: `train.train`).

    Attributes:
      model: the network and its loss.
      data: what to train on.
      optimizer: with its learning rate schedule.
      train_steps: the last step, absolute: 1,001,000 for 1,000 more steps from step 1,000,000.
      batch_size: sequences (packed rows) in a global batch.
      trainer: microbatches, and how often to report and evaluate.
      partitioner: how model and batch are spread over devices.
      checkpoint: when to save, and what to start from.
      model_dir: the run directory. If it has checkpoints, the run continues from the latest.
      random_seed: of initial parameters and dropout, in [0, 2**32); the data has its own.
      evaluator: decodes held-out inputs every now and then; None: none.
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
        check_at_least_one(self, "train_steps", "batch_size")
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
            raise UserError(
                f"batch_size {self.batch_size} is not divisible by trainer.num_microbatches "
                f"{parts}. Nearest: {nearest_multiples(self.batch_size, parts)}."
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
                raise UserError(
                    f"checkpoint.save.{field} {step} is not a multiple of {setting} {period}, so "
                    f"{name} would not be known of checkpoints. Nearest: "
                    f"{nearest_multiples(step, period)}."
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
            run_dir = Path(job.model_dir or "")
            if job.is_finished():
                return job._already_finished(run_dir)
            import jax

            from mtf.checkpoints.manager import write_failures_told

            with signals.Interrupts("saving after this step") as interrupts:
                if jax.process_count() > 1:
                    interrupts.hold()  # They stop together, at a step.
                with write_failures_told(run_dir):
                    return job._run(run_dir, interrupts)

    def _run(self, run_dir: Path, interrupts: signals.Interrupts) -> TrainResult:
        import jax

        from mtf import loaders
        from mtf.checkpoints.manager import CheckpointManager
        from mtf.partitioning import memory
        from mtf.training.loop import TrainLoop
        from mtf.training.plan import least_bytes
        from mtf.training.trainer import starting_state

        started = time.perf_counter()
        primary = jax.process_index() == 0

        # Everything that can be wrong with the input is found here, before anything is written.
        trainer = self._make_trainer()
        partitioner = trainer.partitioner
        self._check_vocabulary()
        lengths = self.data.task_feature_lengths
        memory.check(partitioner.mesh, least_bytes(trainer, lengths, self.batch_size))
        shard_id, num_shards = partitioner.data_layout(self.batch_size)
        shard = {"batch_size": self.batch_size, "shard_id": shard_id, "num_shards": num_shards}
        batches = loaders.make_train_iterator(self.data, **shard)
        evaluations = loaders.make_evaluations(self.data, **shard)
        evaluator = make_evaluator(self, partitioner)
        check_monitored(self, evaluations, evaluator)
        state = starting_state(trainer, run_dir, self.checkpoint.restore, self.train_steps)
        first_step = int(state.step)
        if first_step >= self.train_steps and not owed_evaluations(run_dir, first_step):
            raise UserError(
                f"train_steps {self.train_steps} is absolute, and the checkpoint to start from is "
                f"at step {first_step}: nothing would be trained. For {self.train_steps} more "
                f"steps, set train_steps={first_step + self.train_steps}."
            )

        # From here on files are written; a run that continues first finds its place in the data.
        provenance = json.dumps(loaders.provenance(self.data), indent=1)
        run_dir.mkdir(parents=True, exist_ok=True)
        checkpoints = CheckpointManager(run_dir, self.checkpoint.save)
        latest = checkpoints.latest_step()
        if latest is not None:
            batches.set_state(checkpoints.restore_data_state(latest))
        if primary:
            write_environment(run_dir, [str(device) for device in jax.devices()])
            write_atomically(run_dir / "data.json", f"{provenance}\n")
        progress = self._start_progress(run_dir, first_step, trainer, quiet=not primary)

        # Train.
        loop = TrainLoop(
            trainer,
            batches,
            self.train_steps,
            self.batch_size,
            checkpoints,
            progress,
            interrupts,
            evaluations,
            evaluator,
        )
        try:
            state, stopped = loop.run(state, setup_seconds=time.perf_counter() - started)
        except Exception:
            checkpoints.wait_after_failure()
            raise
        best = checkpoints.best()
        step = int(state.step)
        checkpoints.close()

        # Show what came of it. A signal leaves out what is left to be shown.
        signals.ending(0)
        interrupts.release()
        if stopped is not None:
            progress.note(self._about_stop(run_dir, step, stopped))
            return train_result(run_dir, step, stopped)
        samples = show_samples(self, partitioner, state.params) if self.num_samples else ""
        if primary:
            self._print_end(run_dir, list(evaluations), samples, best)
        return train_result(run_dir, step)

    def _make_trainer(self) -> Trainer:
        from mtf.partitioning.mesh import PjitPartitioner
        from mtf.training.trainer import Trainer

        partitioner = PjitPartitioner.create(self.partitioner)
        partitioner.check_batch_size(self.batch_size, self.trainer.num_microbatches)
        return Trainer(self.model, self.optimizer, partitioner, self.trainer, self.random_seed)

    def _check_vocabulary(self) -> None:
        rows, ids = self.model.network.vocab_size, self.data.vocabulary.vocab_size
        if rows < ids:
            raise UserError(
                f"model.network.vocab_size is {rows}, but data.vocabulary has {ids} ids, sentinels "
                f"included; expected at least {ids} rows (padded to a multiple of 128: "
                f"{-(-ids // 128) * 128})."
            )

    def _start_progress(
        self, run_dir: Path, first_step: int, trainer: Trainer, *, quiet: bool
    ) -> Progress:
        from mtf.models.t5 import num_parameters
        from mtf.training.flops import peak_flops, train_step_flops

        lengths, devices = self.data.task_feature_lengths, trainer.partitioner.mesh.devices
        inputs, targets = lengths["inputs"], lengths["targets"]
        tokens = self.batch_size * (inputs + targets)
        flops = train_step_flops(self.model.network, self.batch_size, inputs, targets)
        kind = devices.flat[0].device_kind
        peak = peak_flops(kind)
        peak = peak and peak * devices.size
        progress = Progress(self.train_steps, tokens, flops, peak, quiet=quiet)
        progress.note(
            f"{run_dir}: {count(num_parameters(self.model.network))} parameters on {devices.size} "
            f"× {kind}, {tokens:,} tokens a step"
        )
        if first_step:
            progress.note(f"continuing from step {first_step}")
        return progress

    def _about_stop(self, run_dir: Path, step: int, stopped: str) -> str:
        said = f"{stopped}: saved step {step} in {run_dir.resolve() / CHECKPOINTS}"
        owed = owed_evaluations(run_dir, step)
        if owed:
            said += "; its evaluation will be done when the run goes on"
        if owed or step < self.train_steps:
            said += f"\ncontinue with: python -m mtf.run --from {run_dir}"
        return said

    def _print_end(
        self, run_dir: Path, evaluations: list[str], samples: str, best: tuple[Path, float] | None
    ) -> None:
        from mtf.training.metrics import plot_loss

        plot = plot_loss(run_dir, evaluations)
        print(samples, end="")
        print(f"run directory  {run_dir}\nloss curve     {plot}")
        if best is not None:
            metric = self.checkpoint.save.metric_name_to_monitor
            print(f"best           {best[0]} ({metric} {best[1]:.4g})")
        print(f"export         python -m mtf.convert {run_dir} {run_dir}/hf --to hf")
        sys.stdout.flush()

    def is_finished(self) -> bool:
        """Returns whether the last step, or a later one, is saved and owes no evaluation."""
        steps = saved_steps(self.model_dir) if self.model_dir is not None else []
        at_end = bool(steps) and steps[-1] >= self.train_steps
        return at_end and not owed_evaluations(self.model_dir or "", steps[-1])

    def _already_finished(self, run_dir: Path) -> TrainResult:
        step = saved_steps(run_dir)[-1]
        print(
            f"{self.model_dir} is at step {step} of {self.train_steps}: nothing to train. "
            f"To go on, set train_steps: python -m mtf.run --from {self.model_dir} "
            f"--set train_steps={step + 1000}",
            flush=True,
        )
        return train_result(run_dir, step)

    def describe(self) -> str:
        """Returns what the run would be: parameters, mesh, tokens a step, bytes. Allocates nothing.

        Raises:
          UserError: a value has the wrong type, or the devices at hand do not suit the mesh or
            the batch.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.training import plan

        lengths = job.data.task_feature_lengths
        return plan.describe(job._make_trainer(), lengths, job.batch_size, job.train_steps)


def make_evaluator(job: Train, partitioner: PjitPartitioner) -> InferenceEvaluator | None:
    """Returns what decodes held-out inputs during training, if `job.evaluator` is set.

    Raises:
      UserError: its settings do not suit the data.
    """
    if job.evaluator is None:
        return None
    from mtf.evaluation.infer_eval import InferenceEvaluator, find_held_out

    return InferenceEvaluator(
        find_held_out(job.data, job.evaluator),
        functools.partial(make_predictor, job, partitioner),
        job.data.vocabulary,
        job.evaluator.decoding
        or DecodingConfig("beam", job.data.task_feature_lengths["targets"], num_beams=1),
        job.evaluator.period,
    )


def make_predictor(job: Train, partitioner: PjitPartitioner, params: Params) -> Predictor:
    """Returns the job's network with some parameters, ready to decode."""
    from mtf.inference.predictor import Predictor

    return Predictor(
        job.model,
        params,
        job.data.vocabulary,
        partitioner,
        batch_size=job.batch_size // job.trainer.num_microbatches,
        max_inputs_length=job.data.task_feature_lengths["inputs"],
    )


def check_monitored(
    job: Train, evaluations: Evaluations, evaluator: InferenceEvaluator | None
) -> None:
    """Refuses to keep the best checkpoints by a metric that the run does not measure.

    Raises:
      UserError: the message names the nearest metrics.
    """
    from mtf.training.metrics import SUMMARY_METRICS

    name = job.checkpoint.save.metric_name_to_monitor
    if name is None:
        return
    measured: dict[str, tuple[str, ...]] = {"train": SUMMARY_METRICS}
    measured |= {f"training_eval/{each}": SUMMARY_METRICS for each in evaluations}
    for each in evaluator.held_out if evaluator is not None else ():
        measured[f"inference_eval/{each.name}"] = each.scores
    names = [f"{place}/{metric}" for place, metrics in measured.items() for metric in metrics]
    if name not in names:
        raise UserError(
            f"checkpoint.save.metric_name_to_monitor: this run measures no {name}; expected a "
            f"metric of {', '.join(measured)}.{did_you_mean(name, names)}"
        )
    for place, batches in evaluations.items():
        if name.startswith(f"training_eval/{place}/") and next(iter(batches()), None) is None:
            raise UserError(
                f"checkpoint.save.metric_name_to_monitor {name!r} would never be measured: the "
                f"data have no example to evaluate on as {place}."
            )


def show_samples(job: Train, partitioner: PjitPartitioner, params: Params) -> str:
    """Returns held-out inputs with their true and predicted targets, as text."""
    from mtf import loaders

    examples = loaders.sample_examples(job.data, job.num_samples)
    if not examples:
        return ""
    predictor = make_predictor(job, partitioner, params)
    inputs = [example.inputs.tolist() for example in examples]
    decoding = DecodingConfig(max_length=job.data.task_feature_lengths["targets"])

    def text(ids: Any) -> str:
        return " ".join(job.data.vocabulary.decode([int(i) for i in ids]).split())

    return "".join(
        f"input      {text(example.inputs)}\ntrue       {text(example.targets)}\n"
        f"predicted  {text(predicted.ids)}\n\n"
        for example, (predicted, *_) in zip(
            examples, predictor.generate(inputs, decoding), strict=True
        )
    )
