"""Runs a training job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from mtf.base import signals
from mtf.base.environment import write_environment
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.progress import waiting
from mtf.base.run_end import RunEnd, write_end
from mtf.base.writing import os_errors_refused, write_atomically
from mtf.checkpoints.manager import CheckpointManager, failures_explained, store_failures_explained
from mtf.checkpoints.steps import saved_steps
from mtf.config import as_flat_text, flat_values, load_config, summarize
from mtf.data import loaders
from mtf.data.packing import to_batch
from mtf.data.row_streams import BatchIterator, Evaluations
from mtf.evaluation.infer_eval import InferenceEvaluator, find_held_out
from mtf.inference.decoding.settings import DecodingConfig, one_beam
from mtf.inference.predictor import Predictor
from mtf.jobs.results import TrainResult, train_result
from mtf.jobs.train import report
from mtf.jobs.train.batch_size import largest_batch_size as largest_batch_size
from mtf.jobs.train.describe import check_vocabulary, checked_trackers
from mtf.jobs.train.describe import describe as describe
from mtf.jobs.train.describe import describe_sharding as describe_sharding
from mtf.jobs.train.settings import Train
from mtf.jobs.watched import watched
from mtf.models import lora
from mtf.models.types import Params
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import wait_for_others
from mtf.storage import AnyPath, as_path
from mtf.training import sizes
from mtf.training.loop import TrainLoop
from mtf.training.metrics import SUMMARY_METRICS
from mtf.training.trackers import Sample, TrackedRun
from mtf.training.trackers.tracking import Tracking
from mtf.training.trainer import Trainer, starting_state


def run(job: Train) -> TrainResult:
    """Runs a job whose config is stored in its run directory; see `Train.run`."""
    run_dir = as_path(job.model_dir or "")
    if job.is_finished():  # Neither a step nor an evaluation is left; nothing is written.
        step = saved_steps(run_dir)[-1]
        report.print_finished(job, run_dir, step)
        return train_result(run_dir, step)
    with (
        signals.Interrupts(what_follows="saving after this step") as interrupts,
        watched(job.trainer.hang_seconds, setting="trainer.hang_seconds") as heartbeat,
    ):
        if jax.process_count() > 1:
            interrupts.hold()  # All processes must stop at the same step.
        return _train(job, run_dir, interrupts, heartbeat)


def _train(
    job: Train, run_dir: AnyPath, interrupts: signals.Interrupts, heartbeat: Heartbeat
) -> TrainResult:
    # Open all input and the run directory. What the input lacks is found before a file is written.
    started = time.perf_counter()
    shown = jax.process_index() == 0
    with _with_other_problems(job), conversion_as_user_errors(), waiting("starting", shown=shown):
        trackers = checked_trackers(job) if jax.process_index() == 0 else ()
        partitioner = PjitPartitioner.create(job.partitioner)
        partitioner.check_batch_size(job.batch_size, job.trainer.num_microbatches)
        trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
        with waiting("opening the data", shown=shown):
            batches, evaluations, evaluator = _open_data(job, trainer)
        state = starting_state(trainer, run_dir, job.checkpoint.restore, job.train_steps)
        provenance = loaders.provenance(job.data)
        wait_for_others()  # Some processes may take longer to open their data.
        with os_errors_refused(run_dir, "model_dir"), store_failures_explained(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            checkpoints = CheckpointManager(run_dir, job.checkpoint.save)
        step, resumes = int(state.step), checkpoints.latest_step() is not None
        if resumes:
            batches.set_state(checkpoints.restore_data_state(step))

    with contextlib.ExitStack() as stack:
        # Start. After an error, saves in the background are completed before the run ends.
        stack.enter_context(failures_explained(checkpoints))
        if jax.process_index() == 0:
            write_environment(run_dir, [str(device) for device in jax.devices()])
            write_atomically(run_dir / "data.json", json.dumps(provenance, indent=1) + "\n")
        heartbeat.record_in(run_dir)
        progress = report.start_progress(
            job,
            run_dir,
            trainer,
            step,
            resumes=resumes,
            is_evaluated=bool(evaluations) or evaluator is not None,
            provenance=provenance,
        )
        # After an error, leaving the context ends the trackers; `TrainLoop.run` closes TensorBoard.
        tracking = stack.enter_context(Tracking(trackers, progress.note))
        if trackers:
            config = flat_values(load_config(run_dir))
            tracking.start(run_dir, TrackedRun(str(run_dir.resolve()), run_dir.name, step, config))

        # Train.
        loop = TrainLoop(
            trainer=trainer,
            batches=batches,
            train_steps=job.train_steps,
            batch_size=job.batch_size,
            checkpoints=checkpoints,
            progress=progress,
            interrupts=interrupts,
            evaluations=evaluations,
            evaluator=evaluator,
            heartbeat=heartbeat,
            tracking=tracking,
            config_text=as_flat_text(load_config(run_dir)) if jax.process_index() == 0 else "",
        )
        state, stopped = loop.run(state, setup_seconds=time.perf_counter() - started)
        step, best = int(state.step), checkpoints.best()
        checkpoints.close()

        # Report. All checkpoints are complete, so from now on a signal only ends the report, with
        # exit status 0. A signal during the last step has stopped a run that is finished.
        finished = stopped is None or job.is_finished()
        end = RunEnd("finished") if finished else RunEnd("stopped", stopped)
        if jax.process_index() == 0:
            write_end(run_dir, end)
        signals.ending(0)
        interrupts.release()
        if stopped is not None:
            report.print_stopped(progress, job, run_dir, step, stopped)
        else:
            samples: Sequence[Sample]
            if evaluator is None:
                with waiting("predicting samples", shown=shown):
                    samples = _samples(job, trainer.partitioner, trainer.eval_params(state))
                if samples:
                    tracking.log_samples(step, samples)
            else:  # It has decoded and logged as many samples of each task, one task after another.
                samples = evaluator.samples[:: len(evaluator.names)]
            report.print_end(job, run_dir, step, samples, evaluations, evaluator, best)
        tracking.end(end)
    return train_result(run_dir, step, stopped)


@contextlib.contextmanager
def _with_other_problems(job: Train) -> Iterator[None]:
    """Adds the other problems that a dry run finds to the first one that ends the block."""
    try:
        yield
    except UserError as error:
        problems = {str(error): None}
        with contextlib.suppress(UserError):
            found = describe(job)
            problems |= dict.fromkeys([*found.problems, *found.unreached])
        if len(problems) == 1:
            raise
        raise UserError(summarize(list(problems))) from error


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
        split = getattr(job.data, "eval_split", None)
        reason = f"nothing is evaluated, because the data has no split {split!r}."
        if len(measured) > 1 or split is None:
            reason = f"the names of its metrics begin with {', '.join(measured)}."
            reason += did_you_mean(name, names)
        raise UserError(
            f"checkpoint.save.metric_name_to_monitor: this run does not measure {name}; {reason}"
        )
    for held_out, batches in evaluations.items():
        if name.startswith(f"training_eval/{held_out}/") and next(iter(batches()), None) is None:
            raise UserError(
                f"checkpoint.save.metric_name_to_monitor {name!r} would never be measured, because "
                f"the data has no examples for the evaluation {held_out}."
            )


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
