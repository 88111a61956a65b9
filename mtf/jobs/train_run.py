"""A training run from its parts: data, mesh, state, loop, and what is shown at the end."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from mtf import loaders, signals
from mtf.checkpoints import finite
from mtf.checkpoints import manager as checkpoint_manager
from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.restore import checkpoint_paths
from mtf.checkpoints.steps import owed_evaluations
from mtf.data.row_streams import Evaluations
from mtf.decoding.settings import DecodingConfig
from mtf.environment import write_environment
from mtf.errors import RunError, UserError, did_you_mean
from mtf.evaluation.infer_eval import InferenceEvaluator, find_held_out
from mtf.inference.predictor import Predictor
from mtf.jobs.results import TrainResult, train_result
from mtf.jobs.train_plan import least_bytes, make_trainer
from mtf.models import t5
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.progress import Progress, count
from mtf.signals import Interrupts
from mtf.text.vocabularies import Vocabulary
from mtf.training import loop
from mtf.training.flops import peak_flops, train_step_flops
from mtf.training.metrics import SUMMARY_METRICS, plot_loss
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from mtf.writing import free_space, write_atomically, write_failure

if TYPE_CHECKING:
    from mtf.jobs.train import Train


def run(job: Train) -> TrainResult:
    """See `Train.run`; `job.model_dir` is set, and holds the config."""
    with Interrupts(loop.SAVING) as interrupts:
        if jax.process_count() > 1:
            interrupts.hold()  # They stop together, at a step.
        with write_failures_told(Path(job.model_dir or "")):
            return _run(job, interrupts)


@contextlib.contextmanager
def write_failures_told(run_dir: Path) -> Iterator[None]:
    """Says in one message what could not be written in a run directory, and how to go on.

    Raises:
      RunError: that message. What was half-written of a checkpoint is removed.
    """
    try:
        yield
    except Exception as error:
        reason = write_failure(error, run_dir)
        if reason is None:
            raise
        if jax.process_index() == 0:
            checkpoint_manager.remove_unfinished(run_dir)
        last = latest_checkpoint(run_dir)
        raise RunError(
            f"{run_dir} cannot be written to: {reason}; {free_space(run_dir)}. The run has "
            f"stopped. {'No checkpoint is' if last is None else f'{last.name} is'} complete. When "
            f"it can be written to, continue with: python -m mtf.run --from {run_dir}"
        ) from None


def _run(job: Train, interrupts: Interrupts) -> TrainResult:
    started = time.perf_counter()

    # Everything that can be wrong with the input is found here, before anything is written.
    partitioner = PjitPartitioner.create(job.partitioner)
    primary = jax.process_index() == 0
    partitioner.check_batch_size(job.batch_size, job.trainer.num_microbatches)
    check_vocabulary(job)
    trainer = make_trainer(job, partitioner)
    memory.check(partitioner.mesh, least_bytes(job, trainer))
    shard_id, num_shards = partitioner.data_layout(job.batch_size)
    shard = {"batch_size": job.batch_size, "shard_id": shard_id, "num_shards": num_shards}
    batches = loaders.make_train_iterator(job.data, **shard)
    evaluations = loaders.make_evaluations(job.data, **shard)
    evaluator = make_evaluator(job, partitioner)
    check_monitored(job, evaluations, evaluator)
    assert job.model_dir is not None
    run_dir = Path(job.model_dir)
    state = starting_state(job, trainer, run_dir)
    first_step = int(state.step)
    if first_step >= job.train_steps and not owed_evaluations(run_dir, first_step):
        raise UserError(
            f"train_steps {job.train_steps} is absolute, and the checkpoint to start from is at "
            f"step {first_step}: nothing would be trained. For {job.train_steps} more steps, set "
            f"train_steps={first_step + job.train_steps}."
        )

    # From here on files are written; where there are checkpoints, only after their place in the
    # data was found to be one of this data.
    provenance = json.dumps(loaders.provenance(job.data), indent=1)
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoints = CheckpointManager(run_dir, job.checkpoint.save)
    latest = checkpoints.latest_step()
    if latest is not None:
        batches.set_state(checkpoints.restore_data_state(latest))
    if primary:
        write_environment(run_dir, [str(device) for device in jax.devices()])
        write_atomically(run_dir / "data.json", f"{provenance}\n")
    lengths = job.data.task_feature_lengths
    inputs, targets = lengths["inputs"], lengths["targets"]
    devices = partitioner.mesh.devices
    peak = peak_flops(devices.flat[0].device_kind)
    progress = Progress(
        first_step,
        job.train_steps,
        tokens_per_step=job.batch_size * (inputs + targets),
        flops_per_step=train_step_flops(job.model.network, job.batch_size, inputs, targets),
        peak_flops=peak and peak * devices.size,
        quiet=not primary,
    )
    progress.note(
        f"{run_dir}: {count(t5.num_parameters(job.model.network))} parameters on {devices.size} × "
        f"{devices.flat[0].device_kind}, {job.batch_size * (inputs + targets):,} tokens a step"
    )
    if first_step:
        progress.note(f"continuing from step {first_step}")

    try:
        state, stopped = loop.train(
            trainer,
            state,
            batches,
            train_steps=job.train_steps,
            batch_size=job.batch_size,
            run_dir=run_dir,
            checkpoints=checkpoints,
            evaluations=evaluations,
            progress=progress,
            setup_seconds=time.perf_counter() - started,
            interrupts=interrupts,
            evaluator=evaluator,
        )
    except Exception:
        checkpoints.wait_after_failure()
        raise
    best = checkpoints.best()
    last_step = int(state.step)
    checkpoints.close()
    # A signal leaves out what is left to be shown.
    signals.ending(0)
    interrupts.release()
    if stopped is not None:
        said = f"{stopped}: saved step {last_step} in {checkpoint_manager.directory(run_dir)}"
        owed = owed_evaluations(run_dir, last_step)
        if owed:
            said += "; its evaluation will be done when the run goes on"
        if owed or last_step < job.train_steps:
            said += f"\ncontinue with: python -m mtf.run --from {run_dir}"
        progress.note(said)
        return train_result(run_dir, last_step, stopped)
    samples = show_samples(job, trainer, state) if job.num_samples else ""
    if primary:
        plot = plot_loss(run_dir, [loop.evaluation_dir(run_dir, name) for name in evaluations])
        print(samples, end="")
        print(f"run directory  {run_dir}\nloss curve     {plot}")
        if best is not None:
            metric = job.checkpoint.save.metric_name_to_monitor
            print(f"best           {best[0]} ({metric} {best[1]:.4g})")
        print(f"export         python -m mtf.convert {run_dir} {run_dir}/hf --to hf")
        sys.stdout.flush()
    return train_result(run_dir, last_step)


def check_vocabulary(job: Train) -> None:
    """Refuses a network with fewer embedding rows than the vocabulary has ids.

    Raises:
      UserError: see above.
    """
    rows, ids = job.model.network.vocab_size, job.data.vocabulary.vocab_size
    if rows < ids:
        raise UserError(
            f"model.network.vocab_size is {rows}, but data.vocabulary has {ids} ids, sentinels "
            f"included; expected at least {ids} rows (padded to a multiple of 128: "
            f"{-(-ids // 128) * 128})."
        )


def starting_state(job: Train, trainer: Trainer, run_dir: Path) -> TrainState:
    """Returns the state to begin with: of the run's latest checkpoint, else as configured.

    Raises:
      UserError: the checkpoint does not fit the model, with the tensors and both shapes; or holds
        NaN or infinity; or is of another step than the configuration says.
    """
    own, restore = latest_checkpoint(run_dir), job.checkpoint.restore
    if own is not None:
        state = trainer.restore_state(own)
        _check_finite(state, own, "Delete it to continue from the one before it.")
        return state
    if restore is None:
        return trainer.init_state()
    path = checkpoint_paths(restore)[-1]
    state = trainer.restore_state(
        path,
        assignment_map=restore.assignment_map,
        fallback_to_scratch=restore.fallback_to_scratch,
    )
    step = int(state.step)
    if restore.step not in (None, step):
        steps = job.train_steps - restore.step
        raise UserError(
            f"checkpoint.restore.step is {restore.step}, but {restore.path} is at step {step}: up "
            f"to train_steps {job.train_steps} there would be {job.train_steps - step} steps, not "
            f"{steps}. For {steps} steps: --set checkpoint.restore.step={step} "
            f"train_steps={step + steps}"
        )
    _check_finite(state, path, "Set checkpoint.restore.path to an earlier one.")
    return state


def _check_finite(state: TrainState, path: Path, advice: str) -> None:
    bad = finite.not_finite(finite.flat_names(state.state_dict()))
    if bad:
        raise UserError(
            f"The checkpoint {path} is not finite: NaN or infinity in {finite.shown(bad)}. {advice}"
        )


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Returns the last complete checkpoint of a run directory, if there is one."""
    import conversion

    directory = checkpoint_manager.directory(run_dir)
    found = conversion.list_checkpoints(directory) if directory.is_dir() else []
    return found[-1][1] if found else None


def make_evaluator(job: Train, partitioner: PjitPartitioner) -> InferenceEvaluator | None:
    """Returns what decodes held-out inputs during training, where that is asked for.

    Raises:
      UserError: its settings do not suit the data.
    """
    if job.evaluator is None:
        return None
    held_out = find_held_out(job.data, job.evaluator)
    return InferenceEvaluator(
        held_out,
        functools.partial(make_predictor, job, partitioner),
        job.data.vocabulary,
        job.evaluator.decoding or DecodingConfig("beam", _max_length(job), num_beams=1),
        job.evaluator.period,
    )


def _max_length(job: Train) -> int:
    """Returns how far is decoded: as long as the targets of training."""
    return job.data.task_feature_lengths["targets"]


def make_predictor(job: Train, partitioner: PjitPartitioner, params: t5.Params) -> Predictor:
    """Returns the job's network with some parameters, ready to decode."""
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
      UserError: see above; names the nearest ones.
    """
    name = job.checkpoint.save.metric_name_to_monitor
    measured: dict[str, tuple[str, ...]] = {"train": SUMMARY_METRICS}
    measured |= {f"training_eval/{each}": SUMMARY_METRICS for each in evaluations}
    for each in evaluator.held_out if evaluator is not None else ():
        measured[f"inference_eval/{each.name}"] = each.scores
    names = [f"{place}/{metric}" for place, metrics in measured.items() for metric in metrics]
    if name is not None and name not in names:
        raise UserError(
            f"checkpoint.save.metric_name_to_monitor: this run measures no {name}; expected a "
            f"metric of {', '.join(measured)}.{did_you_mean(name, names)}"
        )
    for place, batches in evaluations.items():
        if name is None or not name.startswith(f"training_eval/{place}/"):
            continue
        if next(iter(batches()), None) is None:  # Then nothing would be measured.
            raise UserError(
                f"checkpoint.save.metric_name_to_monitor {name!r} would never be measured: the "
                f"data have no example to evaluate on as {place}."
            )


def show_samples(job: Train, trainer: Trainer, state: TrainState) -> str:
    """Held-out inputs with their true and predicted targets, as text."""
    examples = loaders.sample_examples(job.data, job.num_samples)
    if not examples:
        return ""
    predictor = make_predictor(job, trainer.partitioner, state.params)
    inputs = [example.inputs.tolist() for example in examples]
    predictions = predictor.generate(inputs, DecodingConfig(max_length=_max_length(job)))
    vocabulary = job.data.vocabulary
    lines = []
    for example, (predicted, *_) in zip(examples, predictions, strict=True):
        lines.append(f"input      {_line(vocabulary, example.inputs)}")
        lines.append(f"true       {_line(vocabulary, example.targets)}")
        lines.append(f"predicted  {_line(vocabulary, predicted.ids)}\n")
    return "\n".join(lines) + "\n"


def _line(vocabulary: Vocabulary, ids: Any) -> str:
    return " ".join(vocabulary.decode([int(i) for i in ids]).split())
