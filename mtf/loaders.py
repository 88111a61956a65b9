"""Batches for the trainer: endless for training, finite for evaluation; whatever they come from.

Each kind of data has a module with the functions `make_train_iterator`, `evaluation_parts` and
`provenance`. None of them imports SeqIO or `datasets` before it opens data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mtf.cache import loader as cache_loader
from mtf.data import stream_loader, text_loader
from mtf.data.examples import Example
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator, EvaluationParts, Evaluations, Shard, eval_batches
from mtf.data.settings import AnyData, HubStreamConfig, TaskMixtureConfig
from mtf.seqio import loader as seqio_loader


def make_train_iterator(
    data: AnyData,
    *,
    batch_size: int,
    shard_id: int = 0,
    num_shards: int = 1,
    prefetch: int = 2,
) -> BatchIterator:
    """Opens `data` and returns its training batches.

    Args:
      data: what to train on.
      batch_size: rows of the global batch.
      shard_id: which part of it this process gets: rows shard_id * (batch_size // num_shards) on.
      num_shards: number of processes, a divisor of `batch_size`.
      prefetch: batches made ahead of time, in a thread; 0 makes each when it is asked for.

    Raises:
      UserError: the data cannot be used, or not by that many processes.
    """
    shard = Shard(batch_size, shard_id, num_shards)
    batches: BatchIterator = _module(data).make_train_iterator(data, shard, prefetch)
    return batches


def make_evaluations(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1
) -> Evaluations:
    """Returns, by an evaluation's name, a function that returns its batches, always the same ones.

    No example is lost: the last batch is filled up with padding rows, whose loss weights are 0.
    Arguments as for `make_train_iterator`.
    """
    shard = Shard(batch_size, shard_id, num_shards)

    def batches(name: str) -> Iterator[HostBatch]:
        examples = itertools.chain.from_iterable(read() for read in parts[name])
        return eval_batches(examples, data.task_feature_lengths, data.pack, shard)

    parts: EvaluationParts = _module(data).evaluation_parts(data)
    return {name: functools.partial(batches, name) for name in parts}


def sample_examples(data: AnyData, n: int) -> list[Example]:
    """Returns up to `n` examples to look at, not packed, of each part of the evaluations in turn.

    A mixture without examples of `eval_split` gives those of `split`.
    """
    parts: EvaluationParts = _module(data).evaluation_parts(data)
    if not parts and isinstance(data, TaskMixtureConfig):
        parts = _module(data).evaluation_parts(dataclasses.replace(data, eval_split=data.split))
    readers = (read() for part in parts.values() for read in part)
    found = itertools.chain.from_iterable(itertools.zip_longest(*readers))
    return list(itertools.islice((example for example in found if example is not None), n))


def provenance(data: AnyData) -> dict[str, Any]:
    """Returns what tells this data from other data: hashes and counts, fit for JSON."""
    found: dict[str, Any] = _module(data).provenance(data)
    return found


def _module(data: AnyData) -> ModuleType:
    if isinstance(data, TaskMixtureConfig):
        return seqio_loader if data.loader == "seqio" else cache_loader
    return stream_loader if isinstance(data, HubStreamConfig) else text_loader
