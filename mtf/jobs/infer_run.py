"""Inference over files or tasks: read, predict or score, write part by part."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.inference.api import NOT_FINITE, encode
from mtf.inference.files import (
    Request,
    Results,
    Summary,
    input_files,
    read_requests,
    summarize,
)
from mtf.inference.loading import Loaded, load_model
from mtf.inference.opening import open_model
from mtf.inference.predictor import NotFiniteError, Predictor
from mtf.jobs.results import InferResult
from mtf.models.t5 import num_parameters
from mtf.partitioning.mesh import PjitPartitioner
from mtf.progress import progress_bar
from mtf.sources.datasets import open_split
from mtf.sources.problems import Problems
from mtf.tasks.mixtures import mixture, split_available
from mtf.tasks.prompted import PromptedTask
from mtf.tasks.prompts.templates import load_templates
from mtf.tasks.task import Task
from mtf.text.vocabularies import Vocabulary
from mtf.writing import os_errors_refused

if TYPE_CHECKING:
    from mtf.jobs.infer import Infer


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file or a task.

    Attributes:
      name: of the result.
      requests: gives all examples, from the first, whenever it is called.
      inputs_add_eos: None where the model decides.
      targets_add_eos: of the targets that are scored.
      summary: of all examples.
    """

    name: str
    requests: Callable[[], Iterator[Request]]
    inputs_add_eos: bool | None
    targets_add_eos: bool
    summary: Summary


def run(job: Infer) -> InferResult:
    """See `Infer.run`."""
    # Everything that can be wrong with the input is found before anything is written.
    partitioner = PjitPartitioner.create(job.partitioner)
    sources = _sources(job)
    assert job.checkpoint is not None
    loaded = load_model(
        job.checkpoint,
        step=job.step,
        vocabulary=job.vocabulary,
        dtype=job.dtype,
        partitioner=partitioner,
    )
    output_dir = _output_dir(job, loaded.path)
    results = [_results(job, source, loaded, output_dir) for source in sources]
    predictor = Predictor(
        loaded.model,
        loaded.params,
        loaded.vocabulary,
        partitioner,
        batch_size=job.batch_size,
        max_inputs_length=job.task_feature_lengths["inputs"],
        max_targets_length=job.task_feature_lengths["targets"],
    )
    files: list[Path] = []
    for source, result in zip(sources, results, strict=True):
        try:
            with os_errors_refused(output_dir, "output_dir"):
                files.append(_infer(job, source, result, loaded, predictor))
        except UserError:
            if jax.process_index() == 0:
                result.take_back()
            raise
    sys.stdout.flush()
    return InferResult(tuple(files))


def describe(job: Infer) -> str:
    """See `Infer.describe`."""
    assert job.checkpoint is not None
    partitioner = PjitPartitioner.create(job.partitioner)
    mesh, lengths = partitioner.mesh, job.task_feature_lengths
    opened = open_model(job.checkpoint, step=job.step, vocabulary=job.vocabulary)
    path, num = opened.checkpoint.path, num_parameters(opened.model.network)
    rows = [
        (
            "checkpoint",
            f"{path}, {num:,} parameters, a vocabulary of {opened.vocabulary.vocab_size}",
        ),
        ("mode", job.mode if job.mode == "score" else f"{job.mode}, {job.decoding.method}"),
        ("lengths", f"inputs {lengths['inputs']}, targets {lengths['targets']}"),
        ("dtype", job.dtype),
        ("devices", f"{mesh.size} × {mesh.devices.flat[0].device_kind}"),
        ("mesh", " × ".join(f"{name} {n}" for name, n in mesh.shape.items())),
        ("batch", f"{job.batch_size} examples, shard {job.shard_id} of {job.num_shards}"),
        ("output_dir", str(_output_dir(job, path))),
        *((source.name, f"{source.summary.num_examples:,} examples") for source in _sources(job)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


# ----------------------------------------------------------------------------------- input


def _sources(job: Infer) -> list[_Source]:
    return _file_sources(job) if job.files is not None else _task_sources(job)


def _file_sources(job: Infer) -> list[_Source]:
    patterns = (job.files,) if isinstance(job.files, str) else job.files or ()
    problems = Problems("files")
    sources = []
    for name, path in input_files(patterns).items():
        requests = functools.partial(read_requests, path)
        summary = summarize(requests(problems), name, problems, need_targets=job.mode == "score")
        sources.append(_Source(name, requests, job.inputs_add_eos, True, summary))
    problems.check()
    return sources


def _task_sources(job: Infer) -> list[_Source]:
    assert job.mixture_or_task_name is not None
    templates = None if job.templates is None else load_templates(job.templates)
    found = mixture(job.mixture_or_task_name, templates)
    tasks, absent = split_available(found, job.split, job.data_dir)
    for task, reason in absent:
        print(f"left out: {task.name}: {reason}")
    sources, problems = [], Problems("mixture_or_task_name", "examples")
    for task in tasks:
        if task.kind == "documents":
            raise UserError(
                f"mixture_or_task_name: {task.name} has documents, not inputs and targets"
            )
        rows = open_split(
            task.dataset, task.subset, task.source_split(job.split), data_dir=job.data_dir
        )
        requests = functools.partial(_task_requests, _to_read(task, job.mode), rows, job.split)
        add_eos = task.inputs_add_eos if job.inputs_add_eos is None else job.inputs_add_eos
        summary = summarize(requests(), task.name, problems, need_targets=job.mode == "score")
        sources.append(_Source(task.name, requests, add_eos, task.targets_add_eos, summary))
    problems.check()
    return sources


def _to_read(task: Task, mode: str) -> Task:
    """Returns the task whose examples are run; of a ranked one, choices are scored, not decoded."""
    if isinstance(task, PromptedTask) and task.kind == "rank" and mode != "score":
        return task.to_generate()
    return task


def _task_requests(task: Task, rows: Any, split: str) -> Iterator[Request]:
    for index, row in enumerate(rows):
        for example in task.row_examples(row, index, split):
            place = f"{task.name}, row {index} (from 0) of {split}"
            yield Request(example["inputs"], example["targets"], place)


def _output_dir(job: Infer, checkpoint: Path) -> Path:
    if job.output_dir is not None:
        return Path(job.output_dir).expanduser()
    folder = checkpoint.resolve().parent
    if folder.name == "checkpoints":
        return folder.parent / "inference"
    return Path("inference") / checkpoint.resolve().name


def _results(job: Infer, source: _Source, loaded: Loaded, output_dir: Path) -> Results:
    """Returns the results of a source, with what decides them."""
    described = {
        "examples": source.summary.num_examples,
        "fingerprint": source.summary.fingerprint,
        "checkpoint": str(loaded.path.resolve()),
        "step": loaded.step,
        "vocabulary": loaded.vocabulary.fingerprint(),
        "mode": job.mode,
        "dtype": job.dtype,
        "task_feature_lengths": job.task_feature_lengths,
        "inputs_add_eos": _inputs_add_eos(source, loaded),
        "targets_add_eos": source.targets_add_eos,
        "batch_size": job.batch_size,
        "checkpoint_period": job.checkpoint_period,
    }
    if job.mode != "score":
        described["decoding"] = dataclasses.asdict(job.decoding)
    name = f"{source.name}-{job.mode}"
    return Results(output_dir, name, described, shard_id=job.shard_id, num_shards=job.num_shards)


def _inputs_add_eos(source: _Source, loaded: Loaded) -> bool:
    return loaded.inputs_add_eos if source.inputs_add_eos is None else source.inputs_add_eos


# ----------------------------------------------------------------------------------- the loop


def _infer(
    job: Infer, source: _Source, results: Results, loaded: Loaded, predictor: Predictor
) -> Path:
    """Writes all of one source that is not there yet; returns the file, joined where it can be."""
    primary = jax.process_index() == 0
    total = source.summary.num_examples
    first = total * job.shard_id // job.num_shards
    last = total * (job.shard_id + 1) // job.num_shards
    part_size = job.batch_size * job.checkpoint_period
    # All processes do as the first one finds it, also where they see other files.
    num_parts, done = _agreed(results.num_parts, results.done)
    if not done:
        if primary:
            results.start()
        start = first + num_parts * part_size
        requests = itertools.islice(source.requests(), start, last)
        with progress_bar(source.name, last - start, shown=primary) as advance:
            for begin in range(start, last, part_size):
                part = list(itertools.islice(requests, min(part_size, last - begin)))
                lines, num_truncated = _run_part(
                    job, source, part, begin, loaded, predictor, advance
                )
                if primary:
                    results.write_part(lines, num_truncated)
        if primary:
            results.finish()
    elif primary:
        results.clean_up()
    if not primary:
        return results.path
    return _report(results, last - first, total, already=bool(done))


def _report(results: Results, num_lines: int, total: int, *, already: bool) -> Path:
    cut, merged = results.num_truncated, results.merged()
    print(
        f"{results.path}: {num_lines} lines"
        + (", there already" if already else "")
        + (f"; {cut} of the examples were longer than task_feature_lengths and cut off" * bool(cut))
    )
    if merged != results.path:
        print(f"{merged}: {total} lines, of all shards")
    return merged


def _agreed(*numbers: int) -> Sequence[int]:
    if jax.process_count() == 1:
        return numbers
    return [int(n) for n in multihost_utils.broadcast_one_to_all(np.array(numbers))]


def _run_part(
    job: Infer,
    source: _Source,
    part: list[Request],
    begin: int,
    loaded: Loaded,
    predictor: Predictor,
    advance: Callable[[int], None],
) -> tuple[list[dict[str, Any]], int]:
    """Returns the lines of some examples, and how many of those were cut off.

    Args:
      job: what is run.
      source: what the examples are of.
      part: the examples.
      begin: the number of the first of them, by which sampling is seeded.
      loaded: the model.
      predictor: the same, ready to run.
      advance: is told how many are done.
    """
    vocabulary: Vocabulary = loaded.vocabulary
    lengths = job.task_feature_lengths
    add_eos = _inputs_add_eos(source, loaded)
    inputs, truncated = [], [False] * len(part)
    for i, request in enumerate(part):
        ids, truncated[i] = encode(
            vocabulary, request.inputs, add_eos=add_eos, max_length=lengths["inputs"]
        )
        if not ids:
            raise UserError(f"{request.place}: the inputs have no tokens")
        inputs.append(ids)
    lines: list[dict[str, Any]] = [{"inputs": _pretokenized(request)} for request in part]

    if job.mode == "score":
        examples = []
        for i, request in enumerate(part):
            assert request.targets is not None
            ids, cut = encode(
                vocabulary,
                request.targets,
                add_eos=source.targets_add_eos,
                max_length=lengths["targets"],
            )
            truncated[i] |= cut
            examples.append((inputs[i], [ids]))
        try:
            for line, scores in zip(
                lines, predictor.log_likelihoods(examples, on_progress=advance), strict=True
            ):
                line["score"] = float(scores.log_likelihoods[0])
        except NotFiniteError as error:
            raise UserError(
                f"{part[error.example].place}: the score is not a number. {NOT_FINITE}"
            ) from error
        return lines, sum(truncated)

    seeds = range(begin, begin + len(part))
    generated = predictor.generate(inputs, job.decoding, seeds, on_progress=advance)
    for request, line, generations in zip(part, lines, generated, strict=True):
        if not all(math.isfinite(generation.score) for generation in generations):
            raise UserError(f"{request.place}: the score is not a number. {NOT_FINITE}")
        texts = [vocabulary.decode(generation.ids) for generation in generations]
        line["prediction"] = _one_or_all(texts, job.decoding)
        if job.mode == "predict_with_aux":
            values = [generation.score for generation in generations]
            line["aux"] = {"scores": _one_or_all(values, job.decoding)}
    return lines, sum(truncated)


def _one_or_all(values: list[Any], decoding: DecodingConfig) -> Any:
    return values if decoding.num_return > 1 else values[0]


def _pretokenized(request: Request) -> dict[str, str]:
    """T5X's names for the text of an example."""
    found = {"inputs_pretokenized": request.inputs}
    if request.targets is not None:
        found["targets_pretokenized"] = request.targets
    return found
