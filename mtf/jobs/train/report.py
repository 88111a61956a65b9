"""Prints how a training run starts and how it ends."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from mtf.base.environment import resume_command
from mtf.base.progress import Progress, count
from mtf.checkpoints.steps import CHECKPOINTS, owed_evaluations
from mtf.data.tasks.missing import describe_missing
from mtf.jobs.train.settings import Train
from mtf.models.t5 import num_parameters
from mtf.storage import AnyPath
from mtf.training.flops import peak_flops
from mtf.training.metrics import plot_loss
from mtf.training.trackers import Sample
from mtf.training.trainer import Trainer


def print_finished(job: Train, run_dir: AnyPath, step: int) -> None:
    """Prints that a run is finished, and how to train for more steps."""
    early, change = "", f"train_steps={step + 1000}"
    if step < job.train_steps:
        early = f", where training ended early because {job.early_stopping(step)}"
        change = "trainer.early_stopping_patience=None"
    print(
        f"{run_dir} is at step {step} of {job.train_steps}{early}: nothing to train. "
        f"To train for more steps, run: {resume_command(run_dir)} --set {change}",
        flush=True,
    )


def start_progress(
    job: Train,
    run_dir: AnyPath,
    trainer: Trainer,
    step: int,
    *,
    resumes: bool,
    is_evaluated: bool,
    provenance: Mapping[str, Any],
) -> Progress:
    """Prints the size of the run, where it starts, and what of its data is not there.

    Returns the progress, which only process 0 prints. `provenance` is the content of data.json.
    """
    lengths, devices = job.data.task_feature_lengths, trainer.partitioner.mesh.devices
    tokens = job.batch_size * (lengths["inputs"] + lengths["targets"])
    kind = devices.flat[0].device_kind
    peak = peak_flops(kind)
    peak = peak and peak * devices.size
    progress = Progress(job.train_steps, peak, quiet=jax.process_index() != 0)
    at_most = "at most " if job.trainer.trim_padding else ""
    trained = f" ({count(trainer.num_trained)} trained)" if trainer.frozen else ""
    progress.note(
        f"{run_dir}: {count(num_parameters(job.model.network))} parameters{trained} on "
        f"{devices.size} × {kind}, {at_most}{tokens:,} tokens per step"
    )
    if resumes:
        progress.note(f"resuming from step {step}")
    elif (restore := job.checkpoint.restore) is not None:
        progress.note(f"starting from {restore.path} at step {step}")
    if not is_evaluated:
        progress.note(
            "nothing is evaluated, because the data has no held-out part; the result of the run is "
            "the last checkpoint"
        )
    if missing := provenance.get("missing_tasks"):
        progress.note(
            describe_missing(provenance["mixture"], provenance["num_tasks"], missing)
            + " (data.json lists all)"
        )
    return progress


def print_stopped(
    progress: Progress, job: Train, run_dir: AnyPath, step: int, stopped: str
) -> None:
    """Prints that a signal ended the run, and how to resume."""
    message = f"{stopped}: saved step {step} in {run_dir.resolve() / CHECKPOINTS}"
    owed = owed_evaluations(run_dir, step)
    if owed:
        message += "; the resumed run will first evaluate this step"
    if not job.is_finished():
        message += f"\nresume with: {resume_command(run_dir)}"
    progress.note(message)


def print_end(
    job: Train,
    run_dir: AnyPath,
    step: int,
    samples: Sequence[Sample],
    evaluations: Sequence[str],
    best: tuple[AnyPath, float] | None,
) -> None:
    """Prints samples, where the results are, and how to export them; writes loss.png.

    `best` is the best checkpoint with its metric, if the run monitors one.
    """
    if jax.process_index() != 0:
        return
    plot = plot_loss(run_dir, evaluations)
    for sample in samples:
        print(f"input      {sample.input}\ntrue       {sample.true}")
        print(f"predicted  {sample.predicted}\n")
    print(f"run directory  {run_dir}\nloss curve     {plot}")
    if step < job.train_steps:
        print(f"ended early    {job.early_stopping(step)}")
    exported: AnyPath = run_dir
    if best is not None:
        metric, exported = job.checkpoint.save.metric_name_to_monitor, best[0]
        print(f"best           {best[0]} ({metric} {best[1]:.4g})")
    paths = shlex.join([str(exported), f"{run_dir}/hf"])
    print(f"export         python -m mtf.convert {paths} --to hf", flush=True)
