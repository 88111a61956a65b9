"""Runs and describes a training job."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from typing import Any

import jax

from mtf.base import signals
from mtf.base.downloads import as_user_errors
from mtf.base.environment import resume_command, write_environment
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.progress import Progress, count
from mtf.base.run_end import RunEnd, write_end
from mtf.base.writing import write_atomically
from mtf.checkpoints.manager import CheckpointManager, write_failures_explained
from mtf.checkpoints.steps import CHECKPOINTS, owed_evaluations, saved_steps
from mtf.config import as_flat_text, flat_values, load_config
from mtf.data import loaders
from mtf.data.mixtures import open_mixture
from mtf.data.packing import to_batch
from mtf.data.row_streams import BatchIterator, Evaluations
from mtf.data.settings import TaskMixtureConfig, TextFilesConfig
from mtf.data.sources.text_files import find_files
from mtf.data.tasks.missing import describe_missing
from mtf.data.tasks.mixtures import list_mixtures
from mtf.evaluation import metrics
from mtf.evaluation.infer_eval import InferenceEvaluator, find_held_out
from mtf.inference.decoding.settings import DecodingConfig, one_beam
from mtf.inference.predictor import Predictor
from mtf.jobs.description import Checks, Description
from mtf.jobs.results import TrainResult, train_result
from mtf.jobs.train.settings import Train
from mtf.jobs.watched import watched
from mtf.models import lora
from mtf.models.t5 import num_parameters
from mtf.models.types import Params
from mtf.partitioning import memory
from mtf.partitioning.devices import run_devices
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import wait_for_others
from mtf.storage import AnyPath, as_path, check_writable
from mtf.training import sharding_table, sizes
from mtf.training.flops import peak_flops
from mtf.training.loop import TrainLoop
from mtf.training.metrics import SUMMARY_METRICS, plot_loss
from mtf.training.trackers import Sample, TrackedRun, Tracker
from mtf.training.trackers.tracking import Tracking
from mtf.training.trainer import Trainer, check_start, starting_state


def run(job: Train) -> TrainResult:
    """Runs a job whose config is stored in its run directory; see `Train.run`."""
    run_dir = as_path(job.model_dir or "")
    if job.is_finished():
        step = saved_steps(run_dir)[-1]
        early, change = "", f"train_steps={step + 1000}"
        if step < job.train_steps:
            early = f", where training ended early because {job.early_stopping(step)}"
            change = "trainer.early_stopping_patience=None"
        print(
            f"{run_dir} is at step {step} of {job.train_steps}{early}: nothing to train. "
            f"To train for more steps, run: {resume_command(run_dir)} --set {change}",
            flush=True,
        )
        return train_result(run_dir, step)
    with (
        signals.Interrupts("saving after this step") as interrupts,
        watched(job.trainer.hang_seconds, "trainer.hang_seconds") as heartbeat,
    ):
        if jax.process_count() > 1:
            interrupts.hold()  # All processes must stop at the same step.
        with write_failures_explained(run_dir):
            return _train(job, run_dir, interrupts, heartbeat)


def _train(
    job: Train, run_dir: AnyPath, interrupts: signals.Interrupts, heartbeat: Heartbeat
) -> TrainResult:
    # Check all input before anything is written.
    started = time.perf_counter()
    with conversion_as_user_errors():
        trackers: tuple[Tracker, ...] = ()
        if jax.process_index() == 0:
            trackers = _checked_trackers(job)
        partitioner = PjitPartitioner.create(job.partitioner)
        partitioner.check_batch_size(job.batch_size, job.trainer.num_microbatches)
        trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
        batches, evaluations, evaluator = _open_data(job, trainer)
        state = starting_state(trainer, run_dir, job.checkpoint.restore, job.train_steps)
        provenance = loaders.provenance(job.data)
        checkpoints = _open_run_directory(job, run_dir, batches, provenance)
    heartbeat.record_in(run_dir)

    # Train.
    progress = _start_progress(job, run_dir, trainer)
    if checkpoints.latest_step() is not None:
        progress.note(f"resuming from step {int(state.step)}")
    elif (restore := job.checkpoint.restore) is not None:
        progress.note(f"starting from {restore.path} at step {int(state.step)}")
    if not evaluations and evaluator is None:
        progress.note(
            "nothing is evaluated, because the data has no held-out part; the result of the run is "
            "the last checkpoint"
        )
    if missing := provenance.get("missing_tasks"):
        progress.note(
            describe_missing(provenance["mixture"], provenance["num_tasks"], missing)
            + " (data.json lists all)"
        )
    with _start_trackers(trackers, run_dir, int(state.step), progress) as tracking:
        loop = TrainLoop(
            trainer,
            batches,
            job.train_steps,
            job.batch_size,
            checkpoints,
            progress,
            interrupts,
            evaluations,
            evaluator,
            heartbeat,
            tracking,
            as_flat_text(load_config(run_dir)) if jax.process_index() == 0 else "",
        )
        try:
            state, stopped = loop.run(state, setup_seconds=time.perf_counter() - started)
        except Exception:
            checkpoints.wait_after_failure()
            raise
        best = checkpoints.best()
        checkpoints.close()
        finished = stopped is None or job.is_finished()
        end = RunEnd("finished") if finished else RunEnd("stopped", stopped)
        if jax.process_index() == 0:
            write_end(run_dir, end)

        # Print a report. All files of the run are complete, so a signal only ends the report.
        signals.ending(0)
        interrupts.release()
        step = int(state.step)
        if stopped is not None:
            message = f"{stopped}: saved step {step} in {run_dir.resolve() / CHECKPOINTS}"
            owed = owed_evaluations(run_dir, step)
            if owed:
                message += "; the resumed run will first evaluate this step"
            if owed or step < job.train_steps:
                message += f"\nresume with: {resume_command(run_dir)}"
            progress.note(message)
        else:
            samples = _samples(job, trainer.partitioner, trainer.eval_params(state))
            if samples and evaluator is None:  # The evaluator logs its own samples.
                tracking.log_samples(step, samples)
            early = str(job.early_stopping(step)) if step < job.train_steps else ""
            _print_end(job, run_dir, list(evaluations), samples, best, early)
        tracking.end(end)
    return train_result(run_dir, step, stopped)


def _checked_trackers(job: Train) -> tuple[Tracker, ...]:
    """Returns the trackers; raises UserError if any of them cannot be used."""
    trackers = (job.trackers,) if isinstance(job.trackers, Tracker) else job.trackers
    for tracker in trackers:
        tracker.check()
    return trackers


def _start_trackers(
    trackers: tuple[Tracker, ...], run_dir: AnyPath, step: int, progress: Progress
) -> Tracking:
    if not trackers:
        return Tracking()
    tracking = Tracking(trackers, progress.note)
    config = flat_values(load_config(run_dir))
    tracking.start(run_dir, TrackedRun(str(run_dir.resolve()), run_dir.name, step, config))
    return tracking


def _open_data(
    job: Train, trainer: Trainer
) -> tuple[BatchIterator, Evaluations, InferenceEvaluator | None]:
    """Opens the data of this process; checks that the model fits the data and the memory."""
    check_vocabulary(job)
    partitioner, lengths = trainer.partitioner, job.data.task_feature_lengths
    loss_metrics = trainer.check_functions(to_batch([], lengths, 1, job.data.pack))
    memory.check(partitioner.mesh, sizes.least_bytes(trainer, lengths, job.batch_size))
    shard_id, num_shards = partitioner.data_layout(job.batch_size)
    shard = {"batch_size": job.batch_size, "shard_id": shard_id, "num_shards": num_shards}
    batches = loaders.make_train_iterator(job.data, **shard)
    evaluations = loaders.make_evaluations(job.data, **shard)
    evaluator = _make_evaluator(job, partitioner)
    _check_measured(job, evaluations, evaluator, loss_metrics)
    return batches, evaluations, evaluator


def _make_evaluator(job: Train, partitioner: PjitPartitioner) -> InferenceEvaluator | None:
    if job.evaluator is None:
        return None
    return InferenceEvaluator(
        find_held_out(job.data, job.evaluator),
        functools.partial(_make_predictor, job, partitioner),
        job.data.vocabulary,
        job.evaluator.decoding or one_beam(job.data.task_feature_lengths["targets"]),
        job.evaluator.period,
        job.num_samples,
    )


def _make_predictor(job: Train, partitioner: PjitPartitioner, params: Params) -> Predictor:
    network = dataclasses.replace(job.model.network, lora=None)
    return Predictor(
        dataclasses.replace(job.model, network=network),
        lora.merged(params),
        job.data.vocabulary,
        partitioner,
        batch_size=job.batch_size // job.trainer.num_microbatches,
        max_inputs_length=job.data.task_feature_lengths["inputs"],
    )


def _check_measured(
    job: Train,
    evaluations: Evaluations,
    evaluator: InferenceEvaluator | None,
    loss_metrics: tuple[str, ...],
) -> None:
    """Raises UserError if this run does not measure `checkpoint.save.metric_name_to_monitor`.

    `loss_metrics` contains the names of the metrics that a custom loss function returns.
    """
    name = job.checkpoint.save.metric_name_to_monitor
    if name is None:
        return
    measured: dict[str, tuple[str, ...]] = {"train": (*SUMMARY_METRICS, *loss_metrics)}
    measured |= {f"training_eval/{each}": measured["train"] for each in evaluations}
    for each in evaluator.held_out if evaluator is not None else ():
        measured[f"inference_eval/{each.name}"] = each.scores
    names = [f"{kind}/{metric}" for kind, metrics in measured.items() for metric in metrics]
    if name not in names:
        raise UserError(
            f"checkpoint.save.metric_name_to_monitor: this run does not measure {name}; the names "
            f"of its metrics begin with {', '.join(measured)}.{did_you_mean(name, names)}"
        )
    for held_out, batches in evaluations.items():
        if name.startswith(f"training_eval/{held_out}/") and next(iter(batches()), None) is None:
            raise UserError(
                f"checkpoint.save.metric_name_to_monitor {name!r} would never be measured, because "
                f"the data has no examples for the evaluation {held_out}."
            )


def _open_run_directory(
    job: Train, run_dir: AnyPath, batches: BatchIterator, provenance: dict[str, Any]
) -> CheckpointManager:
    """Opens the run's checkpoints, restores the data iterator's state, and writes metadata."""
    wait_for_others()  # Some processes may take longer to open their data.
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoints = CheckpointManager(run_dir, job.checkpoint.save)
    latest = checkpoints.latest_step()
    if latest is not None:
        batches.set_state(checkpoints.restore_data_state(latest))
    if jax.process_index() == 0:
        write_environment(run_dir, [str(device) for device in jax.devices()])
        write_atomically(run_dir / "data.json", json.dumps(provenance, indent=1) + "\n")
    return checkpoints


def _start_progress(job: Train, run_dir: AnyPath, trainer: Trainer) -> Progress:
    lengths, devices = job.data.task_feature_lengths, trainer.partitioner.mesh.devices
    tokens = job.batch_size * (lengths["inputs"] + lengths["targets"])
    kind = devices.flat[0].device_kind
    peak = peak_flops(kind)
    peak = peak and peak * devices.size
    quiet = jax.process_index() != 0
    progress = Progress(job.train_steps, peak, quiet=quiet)
    at_most = "at most " if job.trainer.trim_padding else ""
    trained = f" ({count(trainer.num_trained)} trained)" if trainer.frozen else ""
    progress.note(
        f"{run_dir}: {count(num_parameters(job.model.network))} parameters{trained} on "
        f"{devices.size} × {kind}, {at_most}{tokens:,} tokens per step"
    )
    return progress


def _samples(job: Train, partitioner: PjitPartitioner, params: Params) -> list[Sample]:
    """Returns samples of held-out inputs with their true and predicted targets."""
    examples = loaders.sample_examples(job.data, job.num_samples) if job.num_samples else []
    if not examples:
        return []
    predictor = _make_predictor(job, partitioner, params)
    inputs = [example.inputs.tolist() for example in examples]
    decoding = DecodingConfig(max_length=job.data.task_feature_lengths["targets"])

    def text(ids: Any) -> str:
        return job.data.vocabulary.decode([int(i) for i in ids])

    return [
        Sample.on_lines(text(example.inputs), text(example.targets), text(predicted.ids))
        for example, (predicted, *_) in zip(
            examples, predictor.generate(inputs, decoding), strict=True
        )
    ]


def _print_end(
    job: Train,
    run_dir: AnyPath,
    evaluations: list[str],
    samples: list[Sample],
    best: tuple[AnyPath, float] | None,
    early: str,
) -> None:
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
        metric, exported = job.checkpoint.save.metric_name_to_monitor, best[0]
        print(f"best           {best[0]} ({metric} {best[1]:.4g})")
    print(f"export         python -m mtf.convert {exported} {run_dir}/hf --to hf", flush=True)


def check_vocabulary(job: Train) -> str:
    """Describes the size of the vocabulary; raises UserError if the embedding is too small."""
    rows, ids = job.model.network.vocab_size, job.data.vocabulary.vocab_size
    if rows < ids:
        raise UserError(
            f"model.network.vocab_size is {rows}, but data.vocabulary has {ids} ids, "
            f"including sentinels; expected at least {ids}, or {-(-ids // 128) * 128} if rounded "
            "up to a multiple of 128."
        )
    return f"{job.data.vocabulary.path}: {ids:,} ids, embedding of {rows:,} rows"


def describe(job: Train) -> Description:
    """Returns the sizes and devices of a run, and the results of checks; see `Train.describe`."""
    lengths, batch_size = job.data.task_feature_lengths, job.batch_size
    devices = run_devices(job.partitioner, batch_size, job.trainer.num_microbatches)
    trainer = Trainer(job.model, job.optimizer, devices.partitioner, job.trainer, job.random_seed)
    trainer.check_functions(to_batch([], lengths, 1, job.data.pack))
    needed = sum(sizes.least_bytes(trainer, lengths, batch_size).values())
    checks = Checks()
    checks.add("batch", devices.check_batch)
    above = {
        **sizes.state_rows(trainer, lengths, batch_size),
        **devices.rows(needed),
        **checks.rows,
    }
    run_dir = None if job.model_dir is None else as_path(job.model_dir)
    if run_dir is not None:
        checks.add("model_dir", functools.partial(_check_run_dir, run_dir))
    restore, last = job.checkpoint.restore, job.train_steps
    checks.add("start", lambda: check_start(trainer, run_dir, restore, last))
    checks.add("vocabulary", functools.partial(check_vocabulary, job))
    if isinstance(job.data, TaskMixtureConfig):
        checks.add("mixture", functools.partial(_check_mixture, job.data))
    checks.add("data", lambda: _check_data(job))
    if job.trackers:
        checks.add(
            "trackers",
            lambda: _checked_trackers(job),
            lambda found: ", ".join(type(tracker).__name__ for tracker in found),
        )
    if job.evaluator is not None and job.evaluator.metrics is not None:
        checks.add("metrics", functools.partial(_check_metrics, job.evaluator.metrics))
    work = sizes.step_rows(trainer, lengths, batch_size)
    steps = {"train steps": f"{job.train_steps:,} (including those of the initial checkpoint)"}
    return Description({**above, **work, **steps, **checks.rows}, tuple(checks.problems))


def describe_sharding(job: Train, num_devices: int | None) -> str:
    """Returns a table of the shardings of all parameters; see `Train.describe_sharding`."""
    if num_devices is None:
        partitioner = run_devices(
            job.partitioner, job.batch_size, job.trainer.num_microbatches
        ).partitioner
    else:
        partitioner = PjitPartitioner.create_abstract(job.partitioner, num_devices)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    return sharding_table.text(trainer)


def _check_data(job: Train) -> str:
    data = job.data
    if isinstance(data, TextFilesConfig):
        find_files(data.patterns)
    return loaders.check(data, batch_size=job.batch_size)


def _check_run_dir(run_dir: AnyPath) -> str:
    with as_user_errors("model_dir"):
        check_writable(run_dir)
    return str(run_dir)


def _check_mixture(data: TaskMixtureConfig) -> str:
    """Returns the name of the mixture or task; raises UserError if it does not exist."""
    name = data.mixture_or_task_name
    folders = [as_path(folder) for folder in data.cache_dirs]
    in_cache = any(
        (folder / "mixtures" / f"{name}.json").is_file() or (folder / name / "info.json").is_file()
        for folder in folders
    )
    # A mixture that is registered or in the cache does not need templates.
    if data.task is not None or not (in_cache or name in list_mixtures()):
        open_mixture(data)
    return name


def _check_metrics(names: tuple[str, ...]) -> str:
    for name in names:
        metrics.require(name)
    return ", ".join(names)
