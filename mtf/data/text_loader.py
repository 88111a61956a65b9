"""Batches of text files: documents through an objective, or pairs (`TextFiles`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mtf.data.config import TextFiles
from mtf.data.examples import Dataset, Example
from mtf.data.packing import Batch
from mtf.data.row_streams import (
    BatchIterator,
    SourceRowStream,
    StreamsIterator,
    all_examples,
    eval_batches,
    shard_rows,
)

EVALUATION = "held_out"


def make_train_iterator(
    data: TextFiles,
    *,
    batch_size: int,
    shard_id: int = 0,
    num_shards: int = 1,
    prefetch: int = 2,
) -> BatchIterator:
    """See `mtf.data.loader.make_train_iterator`."""
    rows = shard_rows(batch_size, shard_id, num_shards)
    dataset = Dataset(data)
    lengths, pack = data.task_feature_lengths, data.pack
    streams = {
        row: SourceRowStream(dataset.training(), lengths, pack, row, batch_size) for row in rows
    }
    return StreamsIterator(streams, lengths, pack, dataset.fingerprint, prefetch)


def make_evaluations(
    data: TextFiles, *, batch_size: int, shard_id: int = 0, num_shards: int = 1
) -> dict[str, Callable[[], Iterator[Batch]]]:
    """See `mtf.data.loader.make_evaluations`: the held-out examples."""
    rows = shard_rows(batch_size, shard_id, num_shards)
    return {EVALUATION: functools.partial(_eval_batches, data, batch_size, rows)}


def sample_examples(data: TextFiles, n: int) -> list[Example]:
    """See `mtf.data.loader.sample_examples`: held-out examples."""
    return list(itertools.islice(all_examples(Dataset(data).evaluation()), n))


def provenance(data: TextFiles) -> dict[str, Any]:
    """See `mtf.data.loader.provenance`."""
    return {"data": Dataset(data).fingerprint}


def _eval_batches(data: TextFiles, batch_size: int, rows: range) -> Iterator[Batch]:
    examples = all_examples(Dataset(data).evaluation())
    return eval_batches(
        examples, data.task_feature_lengths, data.pack, batch_size=batch_size, rows=rows
    )
