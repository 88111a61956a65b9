"""Prints how a training run starts and how it ends."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from mtf.base.environment import more_steps, resume_command, trust_option
from mtf.base.progress import Progress, count
from mtf.checkpoints.steps import CHECKPOINTS, owed_evaluations
from mtf.config import run_title
from mtf.data.tasks.missing import describe_missing
from mtf.evaluation.infer_eval import InferenceEvaluator
from mtf.jobs.train.settings import Train
from mtf.models.t5 import num_parameters
from mtf.storage import AnyPath
from mtf.training.flops import peak_flops
from mtf.training.metrics import plot_curves
from mtf.training.trackers import Sample
from mtf.training.trainer import Trainer

# A sample with more characters is printed as a block, and a longer input is cut in a command.
_MAX_LINE, _MAX_INPUT = 90, 60
_MAX_TEXT = 300  # Longer texts of a block are cut.


def print_finished(job: Train, run_dir: AnyPath, step: int) -> None:
    """Prints that a run is finished, and how to train for more steps."""
    restore = job.checkpoint.restore
    length = step - (restore.step or 0 if restore else 0)
    early, change = "", f"train_steps={step + more_steps(length)}"
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
    evaluations: Iterable[str],
    evaluator: InferenceEvaluator | None,
    best: tuple[AnyPath, float] | None,
) -> None:
    """Prints samples, where the results are, and commands that use them; writes loss.png.

    `best` is the best checkpoint with its metric, if the run monitors one.
    """
    if jax.process_index() != 0:
        return
    decoded = () if evaluator is None else evaluator.names
    best_step = None if best is None else int(best[0].name.rpartition("_")[2])
    plot = plot_curves(run_dir, run_title(run_dir), evaluations, decoded, best_step)
    metric, used, where = job.checkpoint.save.metric_name_to_monitor, run_dir, ""
    if best is not None:
        used = best[0]
        where = f" at step {step}" * (used.name != f"checkpoint_{step}")
    if where and samples:
        print(f"predictions{where}:\n")
    print(samples_text(samples, is_compared=evaluator is not None), end="")
    if evaluator is not None:
        for each in evaluator.held_out:
            if (accuracy := evaluator.scores.get(each.name, {}).get("accuracy")) is not None:
                number = f"{len(each.examples):,} held-out examples"
                print(f"exact match    {accuracy:.1f}% of {number} ({each.name}){where}")
    if best is not None:
        print(f"best           {used} ({metric} {best[1]:.4g})")
    print(f"run directory  {run_dir}\nloss curve     {plot}")
    if step < job.train_steps:
        print(f"ended early    {job.early_stopping(step)}")
    trust = trust_option(run_dir)
    if samples:
        arguments = json.dumps(str(used)) + (", trust=True" if trust else "")
        text = json.dumps(shortened(samples[0].input), ensure_ascii=False)
        code = f"import mtf; print(mtf.load({arguments}).generate({text}))"
        print(f"predict        python -c {shlex.quote(code)}")
    paths = shlex.join([str(used), f"{run_dir}/hf"])
    print(f"export         python -m mtf.convert {paths} --to hf{trust}", flush=True)


def shortened(text: str) -> str:
    """Returns the beginning of a long text; it does not end inside a sentinel."""
    return text if len(text) <= _MAX_INPUT else re.sub(r"<\w*$", "", text[:_MAX_INPUT])


def samples_text(samples: Sequence[Sample], is_compared: bool) -> str:
    """Returns short samples that are compared with their targets as lines, others as blocks."""
    is_short = all(len("".join(sample)) <= _MAX_LINE for sample in samples)
    if samples and is_compared and is_short:
        width = max(len(sample.input) for sample in samples)
        lines = (
            f"{sample.input:<{width}} → {sample.predicted} "
            + ("✓\n" if sample.predicted == sample.true else f"✗ ({sample.true})\n")
            for sample in samples
        )
        return "".join(lines) + "\n"
    names = ("input      ", "true       ", "predicted  ")
    return "".join(
        "".join(
            f"{name}{text[:_MAX_TEXT]}{'…' * (len(text) > _MAX_TEXT)}\n"
            for name, text in zip(names, sample, strict=True)
        )
        + "\n"
        for sample in samples
    )
