"""Runs and describes a batch inference job."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import Heartbeat
from mtf.data.mixtures import find_mixture
from mtf.data.tasks.mixtures import Mixture, split_available
from mtf.data.text.vocabularies import ByteVocabulary, Vocabulary
from mtf.inference import loading
from mtf.inference.batch import BatchInference, Source, file_sources, task_sources
from mtf.inference.files import Results
from mtf.inference.loading import load_model
from mtf.inference.opening import Opened, open_model
from mtf.jobs.description import Description
from mtf.jobs.infer.settings import Infer
from mtf.jobs.results import InferResult
from mtf.jobs.watched import in_output_dir, watched
from mtf.partitioning.devices import run_devices
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import is_first_process
from mtf.storage import AnyPath, as_path


def run(job: Infer) -> InferResult:
    """Runs a job whose field types have been checked."""
    job.check_input()
    with watched(job.hang_seconds) as heartbeat:
        return _run(job, heartbeat)


def _run(job: Infer, heartbeat: Heartbeat) -> InferResult:
    # Check all input before anything is written.
    partitioner = PjitPartitioner.create(job.partitioner)
    opened = open_checkpoint(job)
    sources = _sources(job, opened)
    loaded = load_model(opened, job.dtype, partitioner)
    output_dir, lengths = output_dir_of(job, opened.checkpoint.path), job.task_feature_lengths
    shard = {"shard_id": job.shard_id, "num_shards": job.num_shards}
    batch = BatchInference(
        loaded.predictor(job.batch_size, lengths["inputs"], lengths["targets"]),
        loaded.vocabulary,
        lengths,
        job.mode,
        job.decoding,
        job.batch_size * job.checkpoint_period,
        **shard,
        heartbeat=heartbeat,
    )
    one_of_several = f"-{job.shard_id:05}-of-{job.num_shards:05}" if job.num_shards > 1 else ""
    with in_output_dir(heartbeat, output_dir, one_of_several):
        results = [
            Results(output_dir, f"{source.name}-{job.mode}", _decides(job, source, opened), **shard)
            for source in sources
        ]
        files: list[AnyPath] = []
        for source, result in zip(sources, results, strict=True):
            was_done = result.done
            files.append(batch.write(source, result))
            if is_first_process():
                print(batch.report(source, result, files[-1], was_done))
    sys.stdout.flush()
    return InferResult(tuple(files))


def open_checkpoint(job: Infer) -> Opened:
    """Opens the job's checkpoint; raises UserError if none is set."""
    if job.checkpoint is None:
        raise UserError(
            "checkpoint is not set. Pass --set checkpoint=PATH, where PATH is a run directory or a "
            "checkpoint."
        )
    return open_model(job.checkpoint, step=job.step, vocabulary=job.vocabulary)


def _check_tasks(job: Infer, opened: Opened | None) -> str:
    """Returns how many tasks have data, as text; raises UserError if the job would fail."""
    job.check_input()
    mixture = _mixture(job, None if opened is None else opened.vocabulary)
    present, absent = split_available(mixture, job.split, job.data_dir, download=False)
    skipped = f"; {len(absent)} are skipped: {absent[0][1]}" if absent else ""
    return f"{len(present)} of {len(present) + len(absent)} tasks have data{skipped}"


def _mixture(job: Infer, vocabulary: Vocabulary | None) -> Mixture:
    """Returns the mixture or task; custom SeqIO tasks need the checkpoint's vocabulary."""
    name = str(job.mixture_or_task_name)
    return find_mixture(name, vocabulary or ByteVocabulary(), job.module, job.templates)


def _sources(job: Infer, opened: Opened | None) -> list[Source]:
    """Returns the sources of examples; `opened` may be None if the sources are only checked."""
    add_eos = job.inputs_add_eos
    if job.files is not None:
        files = (job.files,) if isinstance(job.files, str) else job.files
        if add_eos is None:
            add_eos = opened is None or opened.inputs_add_eos
        return file_sources(files, job.mode, add_eos)
    tasks = _mixture(job, None if opened is None else opened.vocabulary)
    return task_sources(tasks, job.split, job.mode, job.data_dir, add_eos)


def output_dir_of(job: Infer, checkpoint: AnyPath) -> AnyPath:
    """Returns `job.output_dir` or, if it is None, the default directory for the results."""
    if job.output_dir is not None:
        return as_path(job.output_dir)
    folder = checkpoint.resolve().parent
    if folder.name == "checkpoints":
        return folder.parent / "inference"
    return Path("inference") / checkpoint.resolve().name


def _decides(job: Infer, source: Source, opened: Opened) -> dict[str, Any]:
    """Returns all settings and fingerprints that determine the results of a source."""
    return {
        "examples": source.num_examples,
        "fingerprint": source.fingerprint,
        "checkpoint": str(opened.checkpoint.path.resolve()),
        "step": opened.checkpoint.step,
        "vocabulary": opened.vocabulary.fingerprint(),
        "mode": job.mode,
        "dtype": job.dtype,
        "task_feature_lengths": job.task_feature_lengths,
        "inputs_add_eos": source.inputs_add_eos,
        "targets_add_eos": source.targets_add_eos,
        "batch_size": job.batch_size,
        "checkpoint_period": job.checkpoint_period,
        **({} if job.mode == "score" else {"decoding": dataclasses.asdict(job.decoding)}),
    }


def describe(job: Infer) -> Description:
    """Returns the settings of a job and the results of checks."""
    found, lengths = Description(), job.task_feature_lengths
    opened = found.add("checkpoint", functools.partial(open_checkpoint, job), loading.describe)
    if job.files is None:
        name = job.mixture_or_task_name or "input"
        found.add(name, lambda: _check_tasks(job, opened))
    else:
        sources = found.add("files", lambda: _sources(job, opened), lambda s: f"{len(s)}")
        for each in sources or ():
            found.rows[each.name] = f"{each.num_examples:,} examples"
    rows = {
        "mode": job.mode if job.mode == "score" else f"{job.mode}, {job.decoding.method}",
        "lengths": f"inputs {lengths['inputs']}, targets {lengths['targets']}",
        "dtype": job.dtype,
        **run_devices(job.partitioner).rows(),
        "batch": f"{job.batch_size} examples, shard {job.shard_id} of {job.num_shards}",
    }
    if opened is not None:
        rows["output_dir"] = str(output_dir_of(job, opened.checkpoint.path))
    return Description({**rows, **found.rows}, found.problems)
