"""The training job: its settings and its run. Imports JAX only when it runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtf import signals
from mtf.checkpoints.settings import CheckpointConfig
from mtf.checkpoints.steps import CHECKPOINTS, owed_evaluations, saved_steps
from mtf.checks import AT_LEAST_ONE, check_fields
from mtf.data.settings import AnyData
from mtf.decoding.settings import DecodingConfig, one_beam
from mtf.environment import write_environment
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean, nearest_multiples
from mtf.evaluation.settings import InferEvalConfig
from mtf.jobs.results import TrainResult, train_result
from mtf.models.settings import ModelConfig
from mtf.partitioning.settings import PartitionerConfig
from mtf.progress import Progress, count
from mtf.run_end import RunEnd, write_end
from mtf.storage import AnyPath, as_path
from mtf.tasks.missing import describe_missing
from mtf.trackers import Sample, TrackedRun, Tracker
from mtf.training.settings import (
    STEP,
    AdafactorConfig,
    AdamWConfig,
    AnyOptimizer,
    GradientTransformation,
    TrainerConfig,
)
from mtf.writing import write_atomically

if TYPE_CHECKING:
    from mtf.checkpoints.manager import CheckpointManager
    from mtf.cluster.heartbeat import Heartbeat
    from mtf.data.row_streams import BatchIterator, Evaluations
    from mtf.evaluation.infer_eval import InferenceEvaluator
    from mtf.inference.predictor import Predictor
    from mtf.jobs.description import Description
    from mtf.models.t5 import Params
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.trackers.tracking import Tracking
    from mtf.training.early_stopping import EarlyStopping
    from mtf.training.trainer import Trainer

_MAY_CHANGE = {"on_resume": "may change"}


@dataclasses.dataclass(frozen=True)
class Train:
    """A training run, for pretraining or fine-tuning (T5X: `train.train`).

    Attributes:
      model: the network and its loss.
      data: the data to train and evaluate on.
      optimizer: the optimizer and its learning rate schedule; or any optimizer of optax.
      train_steps: the last step, absolute: 1,001,000 for 1,000 more steps from step 1,000,000.
      batch_size: number of rows in a global batch.
      trainer: microbatches, and the periods of statistics and evaluation.
      partitioner: how model and batch are distributed over devices.
      checkpoint: when to save, and the checkpoint to start from.
      model_dir: the run directory. If it has checkpoints, the run resumes from the latest.
      random_seed: seed for initial parameters and dropout, in [0, 2**32); `data` has its own seed.
      evaluator: evaluation by decoding held-out inputs; None: no such evaluation.
      num_samples: number of held-out examples to print with predictions at the end, and to send
        to trackers.
      trackers: trackers of experiments, such as Weights & Biases, beside TensorBoard.
    """

    model: ModelConfig
    data: AnyData
    optimizer: AdafactorConfig | AdamWConfig | GradientTransformation
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
    trackers: Tracker | tuple[Tracker, ...] = dataclasses.field(default=(), metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        try:
            self._check_values()
        except TypeError:  # A value has the wrong type, such as "16".
            from mtf.config import check_types

            check_types(self)
            raise

    def _check_values(self) -> None:
        if isinstance(self.optimizer, type) or not isinstance(self.optimizer, AnyOptimizer):
            raise TypeError  # A function may have made it, so only the built job can tell.
        check_fields(self, AT_LEAST_ONE, "train_steps", "batch_size")
        check_fields(self, STEP, "train_steps")
        if not 0 <= self.random_seed < 2**32:
            raise UserError(
                f"random_seed must be in [0, 2**32), not {self.random_seed}: jax.random uses only "
                f"its lowest 32 bits, which are {self.random_seed % 2**32}."
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
                "trainer.trim_padding changes the number of padding tokens, by which "
                "model.loss_normalizing_factor 'NUM_TOTAL_TARGET_TOKENS' divides the loss. Set "
                "trainer.trim_padding=False, or model.loss_normalizing_factor to "
                "'NUM_REAL_TARGET_TOKENS'."
            )
        restore = self.checkpoint.restore
        if restore is not None and restore.mode == "all":
            raise UserError(
                "checkpoint.restore.mode 'all' is only for evaluation. Training starts from one "
                "checkpoint: set checkpoint.restore.mode to 'latest' or 'specific'."
            )
        self._check_monitored()

    def _check_monitored(self) -> None:
        """Refuses to save at steps at which the monitored metric is not measured."""
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
        """Trains, and stores the config in the run directory, as the command line does.

        If the run has already reached `train_steps`, returns at once and writes nothing.

        Args:
          allow: paths, such as "batch_size", whose values may differ from the config stored in the
            run directory (`--allow`).

        Raises:
          UserError: a value has the wrong type, `model_dir` holds a run with another config, or
            the input cannot be used. Nothing has been written.
        """
        from mtf.config import in_run_directory  # Imports Fiddle, which creating a job does not.

        with in_run_directory(self, allow) as job:
            run_dir = as_path(job.model_dir or "")
            if job.is_finished():
                step = saved_steps(run_dir)[-1]
                early, change = "", f"train_steps={step + 1000}"
                if step < job.train_steps:
                    early = f", where it ended early: {job._early_stopping(step)}"
                    change = "trainer.early_stopping_patience=None"
                print(
                    f"{run_dir} is at step {step} of {job.train_steps}{early}: nothing to train. "
                    f"To train for more steps: python -m mtf.run --from {run_dir} --set {change}",
                    flush=True,
                )
                return train_result(run_dir, step)
            import jax

            from mtf.checkpoints.manager import write_failures_explained
            from mtf.cluster import preemption
            from mtf.jobs.watched import watched

            with (
                signals.Interrupts("saving after this step") as interrupts,
                watched(job.trainer.hang_seconds, "trainer.hang_seconds") as heartbeat,
            ):
                if jax.process_count() > 1:
                    interrupts.hold()  # All processes stop at the same step.
                with preemption.as_sigterm(), write_failures_explained(run_dir):
                    return job._run(run_dir, interrupts, heartbeat)

    def _run(
        self, run_dir: AnyPath, interrupts: signals.Interrupts, heartbeat: Heartbeat
    ) -> TrainResult:
        import jax

        from mtf import loaders
        from mtf.training.loop import TrainLoop
        from mtf.training.trainer import starting_state

        # Check all input before anything is written.
        started = time.perf_counter()
        with conversion_as_user_errors():
            if jax.process_index() == 0:
                self.check_trackers()
            trainer = self._make_trainer()
            batches, evaluations, evaluator = self._open_data(trainer)
            state = starting_state(trainer, run_dir, self.checkpoint.restore, self.train_steps)
            provenance = loaders.provenance(self.data)
            checkpoints = self._open_run_directory(run_dir, batches, provenance)
        heartbeat.record_in(run_dir)

        # Train.
        progress = self._start_progress(run_dir, trainer)
        resumes = checkpoints.latest_step() is not None
        if start := self._describe_start(int(state.step), resumes):
            progress.note(start)
        if not evaluations and evaluator is None:
            progress.note(
                "nothing is evaluated, because the data has no held-out part; the last checkpoint "
                "is the result"
            )
        if missing := provenance.get("missing_tasks"):
            progress.note(
                describe_missing(provenance["mixture"], provenance["num_tasks"], missing)
                + " (data.json lists all)"
            )
        with self._start_trackers(run_dir, int(state.step), progress) as tracking:
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
                heartbeat,
                tracking,
                _config_text(run_dir),
            )
            try:
                state, stopped = loop.run(state, setup_seconds=time.perf_counter() - started)
            except Exception:
                checkpoints.wait_after_failure()
                raise
            best = checkpoints.best()
            checkpoints.close()
            end = self._write_end(run_dir, stopped)

            # Report. All files of the run are complete: a signal only skips the rest of the report.
            signals.ending(0)
            interrupts.release()
            step = int(state.step)
            if stopped is not None:
                message = f"{stopped}: saved step {step} in {run_dir.resolve() / CHECKPOINTS}"
                owed = owed_evaluations(run_dir, step)
                if owed:
                    message += "; the resumed run will first evaluate this step"
                if owed or step < self.train_steps:
                    message += f"\nresume with: python -m mtf.run --from {run_dir}"
                progress.note(message)
            else:
                samples = self._samples(trainer.partitioner, trainer.eval_params(state))
                if samples and evaluator is None:  # An evaluator has sent its own.
                    tracking.log_samples(step, samples)
                early = str(self._early_stopping(step)) if step < self.train_steps else ""
                self._print_end(run_dir, list(evaluations), samples, best, early)
            tracking.end(end)
        return train_result(run_dir, step, stopped)

    def check_trackers(self) -> str:
        """Returns the names of the trackers; raises UserError if one cannot be used."""
        for tracker in self._trackers:
            tracker.check()
        return ", ".join(type(tracker).__name__ for tracker in self._trackers)

    @property
    def _trackers(self) -> tuple[Tracker, ...]:
        return (self.trackers,) if isinstance(self.trackers, Tracker) else self.trackers

    def _start_trackers(self, run_dir: AnyPath, step: int, progress: Progress) -> Tracking:
        import jax

        from mtf.config import flat_values, load_config
        from mtf.trackers.tracking import Tracking

        if not self.trackers or jax.process_index() != 0:
            return Tracking()
        tracking = Tracking(self._trackers, progress.note)
        config = flat_values(load_config(run_dir))
        tracking.start(run_dir, TrackedRun(str(run_dir.resolve()), run_dir.name, step, config))
        return tracking

    def _make_trainer(self) -> Trainer:
        from mtf.partitioning.mesh import PjitPartitioner
        from mtf.training.trainer import Trainer

        partitioner = PjitPartitioner.create(self.partitioner)
        partitioner.check_batch_size(self.batch_size, self.trainer.num_microbatches)
        return Trainer(self.model, self.optimizer, partitioner, self.trainer, self.random_seed)

    def _open_data(
        self, trainer: Trainer
    ) -> tuple[BatchIterator, Evaluations, InferenceEvaluator | None]:
        """Opens the data of this process, and checks that model, data and memory fit together."""
        from mtf import loaders
        from mtf.data.packing import to_batch
        from mtf.partitioning import memory
        from mtf.training.plan import least_bytes

        self.check_vocabulary()
        partitioner, lengths = trainer.partitioner, self.data.task_feature_lengths
        own_metrics = trainer.check_functions(to_batch([], lengths, 1, self.data.pack))
        memory.check(partitioner.mesh, least_bytes(trainer, lengths, self.batch_size))
        shard_id, num_shards = partitioner.data_layout(self.batch_size)
        shard = {"batch_size": self.batch_size, "shard_id": shard_id, "num_shards": num_shards}
        batches = loaders.make_train_iterator(self.data, **shard)
        evaluations = loaders.make_evaluations(self.data, **shard)
        evaluator = self._make_evaluator(partitioner)
        self._check_measured(evaluations, evaluator, own_metrics)
        return batches, evaluations, evaluator

    def _make_evaluator(self, partitioner: PjitPartitioner) -> InferenceEvaluator | None:
        if self.evaluator is None:
            return None
        from mtf.evaluation.infer_eval import InferenceEvaluator, find_held_out

        return InferenceEvaluator(
            find_held_out(self.data, self.evaluator),
            functools.partial(self._make_predictor, partitioner),
            self.data.vocabulary,
            self.evaluator.decoding or one_beam(self.data.task_feature_lengths["targets"]),
            self.evaluator.period,
            self.num_samples,
        )

    def _make_predictor(self, partitioner: PjitPartitioner, params: Params) -> Predictor:
        from mtf.inference.predictor import Predictor
        from mtf.models import lora

        network = dataclasses.replace(self.model.network, lora=None)
        return Predictor(
            dataclasses.replace(self.model, network=network),
            lora.merged(params),
            self.data.vocabulary,
            partitioner,
            batch_size=self.batch_size // self.trainer.num_microbatches,
            max_inputs_length=self.data.task_feature_lengths["inputs"],
        )

    def _check_measured(
        self,
        evaluations: Evaluations,
        evaluator: InferenceEvaluator | None,
        own: tuple[str, ...],
    ) -> None:
        """Refuses to monitor a metric that this run does not measure; `own` are of its loss."""
        from mtf.training.metrics import SUMMARY_METRICS

        name = self.checkpoint.save.metric_name_to_monitor
        if name is None:
            return
        measured: dict[str, tuple[str, ...]] = {"train": (*SUMMARY_METRICS, *own)}
        measured |= {f"training_eval/{each}": measured["train"] for each in evaluations}
        for each in evaluator.held_out if evaluator is not None else ():
            measured[f"inference_eval/{each.name}"] = each.scores
        names = [f"{place}/{metric}" for place, metrics in measured.items() for metric in metrics]
        if name not in names:
            raise UserError(
                f"checkpoint.save.metric_name_to_monitor: this run does not measure {name}; its "
                f"metrics begin with {', '.join(measured)}.{did_you_mean(name, names)}"
            )
        for place, batches in evaluations.items():
            if name.startswith(f"training_eval/{place}/") and next(iter(batches()), None) is None:
                raise UserError(
                    f"checkpoint.save.metric_name_to_monitor {name!r} would never be measured: the "
                    f"data has no examples for the evaluation {place}."
                )

    def _open_run_directory(
        self, run_dir: AnyPath, batches: BatchIterator, provenance: dict[str, Any]
    ) -> CheckpointManager:
        """Opens the run's checkpoints, restores the position in the data, and writes metadata."""
        import jax

        from mtf.checkpoints.manager import CheckpointManager
        from mtf.partitioning.processes import wait_for_others

        wait_for_others()  # They may have opened their data at other speeds.
        run_dir.mkdir(parents=True, exist_ok=True)
        checkpoints = CheckpointManager(run_dir, self.checkpoint.save)
        latest = checkpoints.latest_step()
        if latest is not None:
            batches.set_state(checkpoints.restore_data_state(latest))
        if jax.process_index() == 0:
            write_environment(run_dir, [str(device) for device in jax.devices()])
            write_atomically(run_dir / "data.json", json.dumps(provenance, indent=1) + "\n")
        return checkpoints

    def _start_progress(self, run_dir: AnyPath, trainer: Trainer) -> Progress:
        import jax

        from mtf.models.t5 import num_parameters
        from mtf.training.flops import peak_flops

        lengths, devices = self.data.task_feature_lengths, trainer.partitioner.mesh.devices
        tokens = self.batch_size * (lengths["inputs"] + lengths["targets"])
        kind = devices.flat[0].device_kind
        peak = peak_flops(kind)
        peak = peak and peak * devices.size
        quiet = jax.process_index() != 0
        progress = Progress(self.train_steps, peak, quiet=quiet)
        at_most = "at most " if self.trainer.trim_padding else ""
        trained = f" ({count(trainer.num_trained)} trained)" if trainer.frozen else ""
        progress.note(
            f"{run_dir}: {count(num_parameters(self.model.network))} parameters{trained} on "
            f"{devices.size} × {kind}, {at_most}{tokens:,} tokens per step"
        )
        return progress

    def _describe_start(self, step: int, resumes: bool) -> str:
        """Returns a text about the first step of a run; "" if it starts from scratch."""
        if resumes:
            return f"resuming from step {step}"
        restore = self.checkpoint.restore
        return "" if restore is None else f"starting from {restore.path} at step {step}"

    def _write_end(self, run_dir: AnyPath, stopped: str | None) -> RunEnd:
        import jax

        finished = stopped is None or self.is_finished()
        end = RunEnd("finished") if finished else RunEnd("stopped", stopped)
        if jax.process_index() == 0:
            write_end(run_dir, end)
        return end

    def _samples(self, partitioner: PjitPartitioner, params: Params) -> list[Sample]:
        """Returns held-out inputs with their true and predicted targets, each on one line."""
        from mtf import loaders

        examples = loaders.sample_examples(self.data, self.num_samples) if self.num_samples else []
        if not examples:
            return []
        predictor = self._make_predictor(partitioner, params)
        inputs = [example.inputs.tolist() for example in examples]
        decoding = DecodingConfig(max_length=self.data.task_feature_lengths["targets"])

        def text(ids: Any) -> str:
            return self.data.vocabulary.decode([int(i) for i in ids])

        return [
            Sample.on_lines(text(example.inputs), text(example.targets), text(predicted.ids))
            for example, (predicted, *_) in zip(
                examples, predictor.generate(inputs, decoding), strict=True
            )
        ]

    def _print_end(
        self,
        run_dir: AnyPath,
        evaluations: list[str],
        samples: list[Sample],
        best: tuple[AnyPath, float] | None,
        early: str,
    ) -> None:
        import jax

        from mtf.training.metrics import plot_loss

        if jax.process_index() != 0:
            return
        plot = plot_loss(run_dir, evaluations)
        for sample in samples:
            print(f"input      {sample.input}\ntrue       {sample.true}")
            print(f"predicted  {sample.predicted}\n")
        print(f"run directory  {run_dir}\nloss curve     {plot}")
        if early:
            print(f"ended early    {early}")
        exported: AnyPath = run_dir
        if best is not None:
            metric, exported = self.checkpoint.save.metric_name_to_monitor, best[0]
            print(f"best           {best[0]} ({metric} {best[1]:.4g})")
        print(f"export         python -m mtf.convert {exported} {run_dir}/hf --to hf", flush=True)

    def is_finished(self) -> bool:
        """Returns whether the run ended at its last step or early, and no evaluation is due."""
        steps = saved_steps(self.model_dir) if self.model_dir is not None else []
        if not steps or owed_evaluations(self.model_dir or "", steps[-1]):
            return False
        return steps[-1] >= self.train_steps or self._early_stopping(steps[-1]).is_over

    def _early_stopping(self, step: int) -> EarlyStopping:
        """Returns the evaluations without improvement up to a step."""
        from mtf.training.early_stopping import EarlyStopping

        patience = self.trainer.early_stopping_patience
        run_dir = as_path(self.model_dir or "")
        return EarlyStopping.resumed(run_dir, self.checkpoint.save, patience, step)

    def describe(self) -> Description:
        """Returns the run's sizes and devices, and checks of its checkpoint, data and vocabulary.

        Allocates and writes nothing. The devices need not be here. Raises UserError if a type is
        wrong; the description contains all other problems.
        """
        from mtf.config import as_checked

        job = as_checked(self)  # Before JAX is imported.
        from mtf.jobs import train_checks

        return train_checks.describe(job)

    def describe_sharding(self, num_devices: int | None = None) -> str:
        """Returns a table of how the parameters are split over devices, which need not be here.

        `num_devices` None: the devices here if the run can use them, otherwise the smallest number.
        """
        from mtf.config import as_checked

        job = as_checked(self)  # Before JAX is imported.
        from mtf.jobs import train_checks

        return train_checks.describe_sharding(job, num_devices)

    def check_vocabulary(self) -> str:
        """Returns the size of the vocabulary; raises UserError if the embedding is too small."""
        rows, ids = self.model.network.vocab_size, self.data.vocabulary.vocab_size
        if rows < ids:
            raise UserError(
                f"model.network.vocab_size is {rows}, but data.vocabulary has {ids} ids, "
                f"including sentinels; expected at least {ids} rows (padded to a multiple of 128: "
                f"{-(-ids // 128) * 128})."
            )
        return f"{self.data.vocabulary.path}: {ids:,} ids, embedding of {rows:,} rows"


def _config_text(run_dir: AnyPath) -> str:
    """Returns the config that process 0 has stored, as flat text; "" in other processes."""
    import jax

    from mtf.config import as_flat_text, load_config

    return as_flat_text(load_config(run_dir)) if jax.process_index() == 0 else ""
