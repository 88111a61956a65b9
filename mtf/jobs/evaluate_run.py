"""A rank evaluation from its parts: tasks, model, scores, and the files with the results."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from mtf import signals, strict_json
from mtf.data.settings import TaskMixtureConfig
from mtf.environment import write_environment
from mtf.errors import UserError
from mtf.evaluation import report
from mtf.evaluation.rank import Ranked, rank_metrics
from mtf.evaluation.rank_data import RankData, RankTask, rank_tasks, with_vocabulary
from mtf.evaluation.report import TaskResult
from mtf.inference.loading import Loaded, load_model
from mtf.inference.opening import Opened, open_model
from mtf.inference.predictor import NotFiniteError, Predictor
from mtf.jobs.results import EvaluateResult
from mtf.models.t5 import num_parameters
from mtf.partitioning.mesh import PjitPartitioner
from mtf.progress import count, duration, progress_bar
from mtf.text.remote import is_remote
from mtf.text.vocabularies import SentencePieceVocabulary
from mtf.training.metrics import MetricsWriter

if TYPE_CHECKING:
    from mtf.jobs.evaluate import Evaluate

RESULTS, TABLE, PREDICTIONS, FIGURE = (
    *("results.json", "results.md", "predictions.jsonl", "accuracy.png"),
)


def run(job: Evaluate) -> EvaluateResult:
    """See `Evaluate.run`."""
    started = time.perf_counter()

    # Everything that can be wrong with the input is found here, before anything is written.
    output_dir = Path(job.output_dir or time.strftime("runs/evaluate-%Y%m%d-%H%M%S")).expanduser()
    _check_output(output_dir)
    opened = _open(job)
    partitioner = PjitPartitioner.create(job.partitioner)
    primary = jax.process_index() == 0
    tasks = _tasks(job, opened)
    loaded = load_model(opened, dtype=job.dtype, partitioner=partitioner)
    lengths = job.data.task_feature_lengths
    predictor = Predictor(
        loaded.model,
        loaded.params,
        loaded.vocabulary,
        partitioner,
        batch_size=job.batch_size,
        max_inputs_length=lengths["inputs"],
        max_targets_length=lengths["targets"],
    )
    if primary:
        print(_about_model(loaded, partitioner))
        sys.stdout.flush()

    # The files appear under their own name when all of them are complete.
    unfinished = output_dir.with_name(f".{output_dir.name}.{os.getpid()}.incomplete")
    if primary:
        unfinished.mkdir(parents=True)
    try:
        with signals.removed_on_stop(unfinished):
            results = _evaluate_all(tasks, predictor, unfinished / PREDICTIONS, primary)
            if primary:
                about = _about(job, loaded, partitioner, time.perf_counter() - started)
                _write(unfinished, results, about, loaded)
                if output_dir.is_dir():
                    output_dir.rmdir()
                unfinished.rename(output_dir)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    if primary:
        print(f"\n{report.as_text(report.summary_table(results))}\n{report.overall_line(results)}")
        for note in report.notes(results):
            print(f"note: {note}")
        seconds = duration(time.perf_counter() - started)
        print(f"results        {output_dir}/{TABLE} (and {RESULTS}, {PREDICTIONS}, {FIGURE})")
        print(f"time           {seconds}")
        sys.stdout.flush()
    return EvaluateResult(output_dir, tuple(results))


def describe(job: Evaluate) -> str:
    """See `Evaluate.describe`."""
    partitioner = PjitPartitioner.create(job.partitioner)
    mesh = partitioner.mesh
    rows = [
        ("data", _data_name(job)),
        ("checkpoint", job.checkpoint or "none: it must be set to run"),
    ]
    if job.checkpoint is None and isinstance(job.data, TaskMixtureConfig):
        tasks = rank_tasks(job.data)
    else:
        opened = _open(job)
        tasks = _tasks(job, opened)
        rows.append(("parameters", f"{num_parameters(opened.model.network):,}"))
    rows += [
        ("dtype", job.dtype),
        ("devices", f"{mesh.size} × {mesh.devices.flat[0].device_kind}"),
        ("mesh", " × ".join(f"{name} {n}" for name, n in mesh.shape.items())),
        ("batch", f"tokens of {job.batch_size} of the longest examples, choices beside them"),
    ]
    datasets: dict[str, list[RankTask]] = {}
    for task in tasks:
        datasets.setdefault(task.dataset, []).append(task)
    for dataset, prompts in datasets.items():
        absent = [task.absent for task in prompts if task.absent is not None]
        text = f"{len(prompts) - len(absent)} of {len(prompts)} prompts"
        rows.append((dataset, f"{text}; absent: {absent[0]}" if absent else text))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _open(job: Evaluate) -> Opened:
    if job.checkpoint is None:
        raise UserError(
            "checkpoint is not set; expected a run directory, a checkpoint_STEP directory or a "
            "Hugging Face directory: --set checkpoint=PATH"
        )
    asked = job.data.vocabulary
    # A released model's vocabulary at its address is the recipe's default; a run has its own.
    if isinstance(asked, SentencePieceVocabulary) and is_remote(asked.path):
        return open_model(job.checkpoint, default_vocabulary=asked)
    return open_model(job.checkpoint, vocabulary=asked)


def _tasks(job: Evaluate, opened: Opened) -> tuple[RankTask, ...]:
    add_eos = opened.run is not None and opened.run.inputs_add_eos
    return rank_tasks(with_vocabulary(job.data, opened.vocabulary, add_eos))


def _data_name(job: Evaluate) -> str:
    data = job.data
    return (
        data.mixture_or_task_name
        if isinstance(data, TaskMixtureConfig)
        else ", ".join(data.patterns)
    )


def _check_output(output_dir: Path) -> None:
    there = next(p for p in (output_dir, *output_dir.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(
            f"output_dir: {output_dir} cannot be made: {there} is not a writable directory."
        )
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(
            f"output_dir: {output_dir} is there already and not empty; results are never "
            "overwritten. Give another one, or None for runs/evaluate-TIME."
        )


def _about_model(loaded: Loaded, partitioner: PjitPartitioner) -> str:
    devices = partitioner.mesh.devices
    parameters = count(num_parameters(loaded.model.network))
    return (
        f"{loaded.path}: {parameters} parameters on {devices.size} × {devices.flat[0].device_kind}"
    )


def _evaluate_all(
    tasks: Sequence[RankTask], predictor: Predictor, predictions: Path, primary: bool
) -> list[TaskResult]:
    """Evaluates task by task; only one task's examples are in memory at a time."""
    results: list[TaskResult] = []
    present = [task for task in tasks if task.load is not None]
    width = max(len(task.name) for task in present)
    with open(predictions if primary else os.devnull, "w", encoding="utf-8") as file:
        for task in tasks:
            if task.load is None:
                results.append(TaskResult(task.name, task.dataset, task.prompt, absent=task.absent))
                continue
            place = f"{present.index(task) + 1}/{len(present)}"
            result, lines = evaluate_task(task, task.load(), predictor, place, shown=primary)
            results.append(result)
            file.writelines(strict_json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            if primary:
                accuracy = f"{result.metrics['accuracy']:6.2f}" if result.metrics else "     –"
                print(f"{place:>7}  {task.name:<{width}}  {accuracy}  ({result.num_examples:,})")
                sys.stdout.flush()
    return results


def evaluate_task(
    task: RankTask, data: RankData, predictor: Predictor, place: str, *, shown: bool
) -> tuple[TaskResult, Iterator[dict[str, Any]]]:
    """Scores and ranks the examples of one task.

    Args:
      task: which.
      data: its examples.
      predictor: the model.
      place: for the progress bar.
      shown: whether there is one.

    Returns:
      The result, and the lines of `predictions.jsonl`.

    Raises:
      UserError: a score is not a number; says of which example.
    """
    examples = data.examples
    truncated_before = predictor.num_truncated
    with progress_bar(f"{place} {task.name}", len(examples), shown=shown) as advance:
        try:
            pairs = ((e.inputs, e.choices) for e in examples)
            scores = list(predictor.log_likelihoods(pairs, on_progress=advance))
        except NotFiniteError as error:
            number = examples[error.example].id
            raise UserError(f"task {task.name}, row {number} of its data: {error}") from error
    ranked = [
        Ranked(s.log_likelihoods.tolist(), s.num_tokens.tolist(), e.correct)
        for s, e in zip(scores, examples, strict=True)
    ]
    result = TaskResult(
        task.name,
        task.dataset,
        task.prompt,
        rank_metrics(ranked) if ranked else {},
        num_examples=len(ranked),
        num_left_out=data.num_left_out,
        num_truncated=predictor.num_truncated - truncated_before,
        num_close=sum(r.is_close for r in ranked),
        num_unanswerable=sum(r.label is None for r in ranked),
        failed=data.failed,
    )
    lines = (
        {
            "task": task.name,
            "id": e.id,
            "log_likelihoods": r.log_likelihoods,
            "num_tokens": r.num_tokens,
            "correct": r.correct,
            "prediction": r.prediction,
            "length_normalized_prediction": r.length_normalized_prediction,
            "truncated": s.truncated,
        }
        for e, r, s in zip(examples, ranked, scores, strict=True)
    )
    return result, lines


def _about(
    job: Evaluate, loaded: Loaded, partitioner: PjitPartitioner, seconds: float
) -> dict[str, Any]:
    return {
        "data": _data_name(job),
        "split": job.data.eval_split if isinstance(job.data, TaskMixtureConfig) else None,
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "num_parameters": num_parameters(loaded.model.network),
        "vocabulary": loaded.vocabulary.fingerprint(),
        "dtype": job.dtype,
        "batch_size": job.batch_size,
        "mesh": dict(partitioner.mesh.shape),
        "task_feature_lengths": job.data.task_feature_lengths,
        "seconds": round(seconds, 1),
    }


def _write(
    folder: Path, results: Sequence[TaskResult], about: dict[str, Any], loaded: Loaded
) -> None:
    content = strict_json.dumps(report.as_json(results, about), indent=1, ensure_ascii=False)
    (folder / RESULTS).write_text(content + "\n", encoding="utf-8")
    title = f"{about['data']}: {loaded.path.name}"
    (folder / TABLE).write_text(report.as_markdown(results, title), encoding="utf-8")
    report.plot(results, folder / FIGURE, title)
    step = loaded.step or 0
    with MetricsWriter(folder / "tensorboard", step) as writer:
        writer.write(step, report.scalars(results))
    write_environment(folder, [str(device) for device in jax.devices()])
