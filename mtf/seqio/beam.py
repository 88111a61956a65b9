"""Caches at scale: SeqIO's own Beam cacher, on whatever runs Beam (Dataflow, Flink, Spark, …).

It writes SeqIO's layout (`cache_format`). The rows of a dataset are shared by the runner's workers,
which read the datasets and the vocabulary from where they are named: both must be in reach of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from mtf.cache.build import CacheConfig, Plan, cache_info, make_plan
from mtf.cache.format import write_json
from mtf.errors import UserError
from mtf.seqio.cache_format import COMPLETED
from mtf.tasks.mixtures import Mixture
from mtf.tasks.task import Task

PREFIX = "beam:"


def run(mixture: Mixture, settings: CacheConfig, runner: str, options: Sequence[str]) -> int:
    """Writes what is missing of a mixture's cache; returns the exit status.

    Tasks that are complete are kept, half-finished ones are written again.

    Args:
      mixture: of `mtf.tasks.mixtures`.
      settings: `format` must be "seqio", and `max_rows` None; `cache_dir` may be an address that
        Beam knows (`gs://…`).
      runner: `beam:` and the name of a runner (`beam:DirectRunner`).
      options: Beam's own (`--project=…`).

    Raises:
      UserError: Beam or SeqIO are not installed, there is no such runner, or the data is missing.
    """
    beam = _import_beam()
    pipeline_options = _pipeline_options(beam, settings, runner, options)
    plan = make_plan(mixture, settings)
    output = _address(settings)
    done = _complete_tasks(beam, plan, output)
    names = [name for name in plan.infos if name not in done]
    if output == str(settings.cache_dir):
        write_json(settings.cache_dir / "cache.json", cache_info(settings))
    start = time.perf_counter()
    if names:
        print(f"{len(names)} tasks to be written by {runner.removeprefix(PREFIX)}", file=sys.stderr)
        with beam.Pipeline(options=pipeline_options) as pipeline:
            _add_tasks(beam, pipeline, plan, set(names), output)
    num_examples = sum(_num_examples(beam, output, name, plan) for name in names)
    print(
        f"{output}: {len(names)} tasks written in {time.perf_counter() - start:.0f} s, "
        f"{len(done) + len(plan.finished)} were there, {len(plan.absent)} left out\n"
        f"{num_examples:,} examples"
    )
    return 0


def _pipeline_options(
    beam: ModuleType, settings: CacheConfig, runner: str, options: Sequence[str]
) -> Any:
    name = runner.removeprefix(PREFIX)
    if not runner.startswith(PREFIX) or not name:
        raise UserError(f"--runner {runner}: expected {PREFIX}NAME, such as beam:DirectRunner")
    if settings.format.name != "seqio":
        raise UserError(
            "--runner writes SeqIO's layout only: add --format seqio; from what it writes, "
            "--from-seqio then makes a token cache"
        )
    if settings.max_rows is not None:
        raise UserError("--max-rows is for trials on one machine; it does not work with --runner")
    try:
        beam.runners.runner.create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f"--runner {runner}: {error}") from error
    return beam.options.pipeline_options.PipelineOptions([f"--runner={name}", *options])


def _address(settings: CacheConfig) -> str:
    # A path has lost a slash of `gs://`.
    return re.sub("^([a-z0-9]+):/(?=[^/])", r"\1://", str(settings.cache_dir))


def _complete_tasks(beam: ModuleType, plan: Plan, output: str) -> list[str]:
    exists = beam.io.filesystems.FileSystems.exists
    try:
        return [name for name in plan.infos if exists(os.path.join(output, name, COMPLETED))]
    except ValueError as error:
        # What Beam raises for a file system that it does not have.
        raise UserError(f"--output {output}: {error}") from error


def _add_tasks(beam: ModuleType, pipeline: Any, plan: Plan, names: set[str], output: str) -> None:
    import seqio
    from seqio import beam_utils

    settings = plan.settings
    tasks = {
        _registry_name(task, settings): task for task, _ in plan.mixture.tasks if task.name in names
    }
    num_shards = Counter((work.info.name, work.split) for work in plan.works)
    # Each worker registers the tasks for itself: only what describes them travels.
    setup = functools.partial(
        _register, tasks, settings.vocabulary, settings.data_dir, settings.seed
    )
    setup()
    for registry_name, ours in tasks.items():
        task, name = seqio.TaskRegistry.get(registry_name), ours.name
        folder = os.path.join(output, name)
        written = []
        for split in [split for task_name, split in num_shards if task_name == name]:
            label, shards = f"{name}/{split}", num_shards[name, split]
            preprocess = beam_utils.PreprocessTask(task, split, setup_fn=setup)
            examples = (
                pipeline
                | f"{label}/preprocess" >> preprocess
                # Without this, a sorted dataset stays sorted.
                | f"{label}/shuffle" >> beam.Reshuffle()
            )
            records = seqio.get_cached_tfrecord_prefix(folder, split)
            written += [
                examples
                | f"{label}/write" >> beam_utils.WriteExampleTfRecord(records, num_shards=shards),
                examples
                | f"{label}/info" >> beam_utils.GetInfo(shards)
                | f"{label}/write_info"
                >> beam_utils.WriteJson(seqio.get_cached_info_path(folder, split)),
                examples
                | f"{label}/stats" >> beam_utils.GetStats(task.output_features)
                | f"{label}/write_stats"
                >> beam_utils.WriteJson(seqio.get_cached_stats_path(folder, split)),
            ]
        _ = (
            written
            | f"{name}/all_written" >> beam.Flatten()
            | f"{name}/nothing" >> beam.Filter(lambda _: False)
            | f"{name}/complete"
            >> beam.io.WriteToText(
                os.path.join(folder, COMPLETED), num_shards=1, shard_name_template=""
            )
        )


def _registry_name(task: Task, settings: CacheConfig) -> str:
    # Another task of that name may be registered already, with another vocabulary, say.
    what = (task.fingerprint, settings.vocabulary.fingerprint(), settings.data_dir, settings.seed)
    return f"mtf_{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}:{task.name}"


def _register(tasks: dict[str, Any], vocabulary: Any, data_dir: str | None, seed: int) -> None:
    import seqio

    from mtf.seqio import tasks as seqio_tasks

    vocab = seqio_tasks.seqio_vocabulary(vocabulary)
    datasets = seqio_tasks.OpenDatasets(data_dir)
    for name, task in tasks.items():
        if name not in seqio.TaskRegistry.names():
            made = seqio_tasks.seqio_task(name, task, vocab, datasets, seed)
            seqio.TaskRegistry.add_provider(name, made)


def _num_examples(beam: ModuleType, output: str, name: str, plan: Plan) -> int:
    open_file: Callable[[str], Any] = beam.io.filesystems.FileSystems.open
    total = 0
    for split in {work.split for work in plan.works if work.info.name == name}:
        with open_file(os.path.join(output, name, f"stats.{split}.json")) as file:
            total += json.load(file)["examples"]
    return total


def _import_beam() -> ModuleType:
    from mtf.seqio.registry import import_seqio

    import_seqio()
    try:
        import apache_beam
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise UserError(
            "Apache Beam is not installed; run: pip install 'mtf-jax[beam]'. Without --runner the "
            "cache is written by processes on this machine"
        ) from error
    module: ModuleType = apache_beam
    return module
