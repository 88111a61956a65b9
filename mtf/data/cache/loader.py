"""Loads a mixture from its token cache (`TaskMixtureConfig` with loader="cache")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtf.data.cache.mixture import CachedMixture, NoExamplesError, row_sources
from mtf.data.examples import ExampleSource
from mtf.data.mixtures import check_datasets
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    Shard,
    SourceReader,
    SourceRowStream,
    StreamsIterator,
)
from mtf.data.settings import TaskMixtureConfig


def make_train_iterator(data: TaskMixtureConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.data.loaders.make_train_iterator`."""
    dataset = CachedMixture(data, data.split)
    dataset.check_missing(dataset.unused)
    dataset.fetch()
    streams = open_streams(dataset, shard.rows, shard.batch_size, data)
    return StreamsIterator(streams, data, dataset.fingerprint, prefetch)


def open_streams(
    dataset: CachedMixture, rows: range, batch_size: int, data: TaskMixtureConfig
) -> dict[int, SourceRowStream]:
    """Returns a dict mapping each row's index in the global batch to the row's stream."""
    sources: list[Sequence[ExampleSource]]
    if dataset.has_documents:
        mixing = dataset.mixing
        sources = [
            [task.document_source(training=True) for _ in rows]
            if task.info.kind == "documents"
            else row_sources(task, len(rows), batch_size)
            for task in dataset.tasks
        ]
    else:
        mixing, sources = None, [row_sources(dataset, len(rows), batch_size)]
    streams = {}
    for row, mine in zip(rows, zip(*sources, strict=True), strict=True):
        readers = [SourceReader(source, row, batch_size) for source in mine]
        streams[row] = SourceRowStream(readers, data, row, batch_size, mixing)
    return streams


def evaluation_parts(data: TaskMixtureConfig) -> EvaluationParts:
    """Returns one evaluation of all tasks that have `eval_split`; {} if there are no examples."""
    if data.eval_split is None:
        return {}
    try:
        dataset = CachedMixture(data, data.eval_split)
    except NoExamplesError:
        return {}
    return {data.mixture_or_task_name: dataset.all_examples}


def check(data: TaskMixtureConfig, batch_size: int) -> str:
    """See `mtf.data.loaders.check`; reads at most one record of each task."""
    if data.loader == "memory":
        return check_datasets(data)
    dataset = CachedMixture(data, data.split)
    dataset.check_missing(dataset.unused)
    for task in dataset.tasks:
        if task.info.kind == "documents":
            task.document_source(training=True)
    content = "documents" if dataset.has_documents else "examples"
    num_present = dataset.num_tasks - len(dataset.unused)
    return (
        f"{dataset.cache.where}: {num_present} of {dataset.num_tasks} tasks, "
        f"{dataset.num_examples:,} {content}"
    )


def provenance(data: TaskMixtureConfig) -> dict[str, Any]:
    """See `mtf.data.loaders.provenance`."""
    return CachedMixture(data, data.split).provenance()
