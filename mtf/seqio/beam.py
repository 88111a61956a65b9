"""Writes caches in SeqIO's layout with SeqIO's Beam cacher, on any Beam runner.

The workers divide the records of a dataset among them. They must reach the datasets and the
vocabulary at the given paths.
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
from collections.abc import Sequence
from typing import Any

from mtf.cache.build import Plan, cache_info, make_plan
from mtf.cache.format import write_json
from mtf.cache.settings import CacheConfig
from mtf.errors import UserError
from mtf.extras import check_extra, import_extra
from mtf.seqio.cache_format import COMPLETED
from mtf.seqio.importing import import_seqio
from mtf.tasks.mixtures import Mixture
from mtf.tasks.task import Task

PREFIX = "beam:"
_PURPOSE = "Caching with --runner, unlike caching with local processes,"


def run(mixture: Mixture, settings: CacheConfig, runner: str, options: Sequence[str]) -> None:
    """Writes the incomplete tasks of a mixture, and prints a summary.

    Args:
      mixture: mixture to cache.
      settings: settings of the cache; `cache_dir` may be an address that Beam knows (`gs://…`).
      runner: `beam:` and the name of a runner (`beam:BundleBasedDirectRunner`).
      options: options of Beam (`--project=…`).

    Raises UserError if Beam or SeqIO is not installed, the runner is unknown, the settings are not
    supported, or data is missing.
    """
    # First, because the extra `beam` has SeqIO, too.
    check_extra("apache_beam", _PURPOSE, "beam")
    import_seqio()
    beam = import_extra("apache_beam", _PURPOSE, "beam")
    pipeline_options = _pipeline_options(settings, runner, options)
    plan = make_plan(mixture, settings)
    # `Path` removes a slash from `gs://`.
    output = re.sub("^([a-z0-9]+):/(?=[^/])", r"\1://", str(settings.cache_dir))
    files = beam.io.filesystems.FileSystems
    try:
        names = [n for n in plan.works if not files.exists(os.path.join(output, n, COMPLETED))]
    except ValueError as error:  # Beam does not know this file system
        raise UserError(f"--output {output}: {error}") from error
    if output == str(settings.cache_dir):
        write_json(settings.cache_dir / "cache.json", cache_info(settings))
    start = time.perf_counter()
    if names:
        print(f"{runner.removeprefix(PREFIX)} will write {len(names)} tasks", file=sys.stderr)
        with beam.Pipeline(options=pipeline_options) as pipeline:
            _add_tasks(pipeline, plan, names, output)
    num_examples = 0
    for name, split in {(n, work.split) for n in names for work in plan.works[n]}:
        with files.open(os.path.join(output, name, f"stats.{split}.json")) as file:
            num_examples += json.load(file)["examples"]
    num_complete = len(plan.works) - len(names) + len(plan.finished)
    print(
        f"{output}: {len(names)} tasks written in {time.perf_counter() - start:.0f} s, "
        f"{num_complete} were already complete, {len(plan.absent)} left out\n"
        f"{num_examples:,} examples"
    )


def _pipeline_options(settings: CacheConfig, runner: str, options: Sequence[str]) -> Any:
    import apache_beam as beam

    name = runner.removeprefix(PREFIX)
    if not runner.startswith(PREFIX) or not name:
        raise UserError(f"--runner {runner}: expected {PREFIX}NAME, e.g. {PREFIX}DataflowRunner")
    if settings.format.name != "seqio":
        raise UserError(
            "--runner writes only SeqIO's format: add --format seqio, then convert the result to a "
            "token cache with --from-seqio"
        )
    if settings.max_rows is not None:
        raise UserError("--max-rows cannot be used with --runner; leave out one of the two")
    try:
        beam.runners.runner.create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f"--runner {runner}: {error}") from error
    return beam.options.pipeline_options.PipelineOptions([f"--runner={name}", *options])


def _add_tasks(pipeline: Any, plan: Plan, names: Sequence[str], output: str) -> None:
    import apache_beam as beam
    import seqio
    from seqio import beam_utils

    settings = plan.settings
    tasks = {_registry_name(task, settings): task for task, _ in plan.mixture.tasks}
    tasks = {name: task for name, task in tasks.items() if task.name in names}
    # Each worker registers the tasks itself, so only their descriptions are pickled.
    setup = functools.partial(
        _register, tasks, settings.vocabulary, settings.data_dir, settings.seed
    )
    setup()
    for registry_name, ours in tasks.items():
        task, name = seqio.TaskRegistry.get(registry_name), ours.name
        folder = os.path.join(output, name)
        written = []
        for split, shards in Counter(work.split for work in plan.works[name]).items():
            label = f"{name}/{split}"
            preprocess = beam_utils.PreprocessTask(task, split, setup_fn=setup)
            examples = (
                pipeline
                | f"{label}/preprocess" >> preprocess
                # Otherwise, a sorted dataset stays sorted.
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
    # A task with the same name may be registered already, for example with another vocabulary.
    what = (task.fingerprint, settings.vocabulary.fingerprint(), settings.data_dir, settings.seed)
    return f"mtf_{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}:{task.name}"


def _register(tasks: dict[str, Task], vocabulary: Any, data_dir: str | None, seed: int) -> None:
    import seqio

    from mtf.seqio import tasks as seqio_tasks

    vocab = seqio_tasks.seqio_vocabulary(vocabulary)
    datasets = seqio_tasks.OpenDatasets(data_dir)
    for name, task in tasks.items():
        if name not in seqio.TaskRegistry.names():
            made = seqio_tasks.seqio_task(name, task, vocab, datasets, seed)
            seqio.TaskRegistry.add_provider(name, made)
