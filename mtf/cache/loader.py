"""Batches of a mixture from its token cache (`TaskMixtureConfig` with loader="cache").

`mtf.cache.mixture` makes the sequence of examples; neither TensorFlow nor templates are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtf.cache.mixture import CachedMixture, NoExamplesError, RowSource, row_sources
from mtf.data.examples import Cursor
from mtf.data.packing import Row
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    MixedRowStream,
    Shard,
    SourceRowStream,
    StreamsIterator,
)
from mtf.data.settings import TaskMixtureConfig


def make_train_iterator(data: TaskMixtureConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.loaders.make_train_iterator`."""
    dataset = CachedMixture(data, data.split)
    streams = open_streams(dataset, shard.rows, shard.batch_size, data.pack)
    return StreamsIterator(
        streams, data.task_feature_lengths, data.pack, dataset.fingerprint, prefetch
    )


def open_streams(
    dataset: CachedMixture, rows: range, batch_size: int, pack: bool
) -> dict[int, CachedRowStream] | dict[int, MixedRowStream]:
    """Returns a stream for each of the given rows of the global batch."""
    data, lengths = dataset.data, dataset.data.task_feature_lengths
    if not dataset.has_documents:
        sources = row_sources(dataset, len(rows), batch_size)
        return {
            row: CachedRowStream(source, lengths, pack, row, batch_size)
            for row, source in zip(rows, sources, strict=True)
        }
    by_task = [
        [task.document_source(training=True) for _ in rows]
        if task.info.kind == "documents"
        else row_sources(task, len(rows), batch_size)
        for task in dataset.tasks
    ]
    return {
        row: MixedRowStream(mine, dataset.mixing, data.seed, lengths, pack, row, batch_size)
        for row, mine in zip(rows, zip(*by_task, strict=True), strict=True)
    }


class CachedRowStream(SourceRowStream):
    """A row of every batch; the examples of a row that was open are read together."""

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        source = self._reader.source
        assert isinstance(source, RowSource)
        return source.read_again([unit for (unit,) in cursors])


def evaluation_parts(data: TaskMixtureConfig) -> EvaluationParts:
    """See `mtf.loaders`: `eval_split` of the tasks that have it, always in the same order."""
    if data.eval_split is None:
        return {}
    try:
        dataset = CachedMixture(data, data.eval_split)
    except NoExamplesError:
        return {}
    return {data.mixture_or_task_name: [dataset.all_examples]}


def provenance(data: TaskMixtureConfig) -> dict[str, Any]:
    """See `mtf.loaders.provenance`."""
    return CachedMixture(data, data.split).provenance()
