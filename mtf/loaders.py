"""Batches for the trainer: endless for training, finite for evaluation; whatever they come from.

Each kind of data has a module of its own with the functions of this one, and only the one that is
used is imported.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mtf.data.examples import Example
from mtf.data.row_streams import BatchIterator, Evaluations, Shard
from mtf.data.settings import AnyData, HubStreamConfig, TaskMixtureConfig


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
      shard_id: which part of it this process wants: rows shard_id * (batch_size // num_shards) on.
      num_shards: number of processes, a divisor of `batch_size`.
      prefetch: batches made ahead of time, in a thread; 0 makes each when it is asked for.

    Raises:
      UserError: the data cannot be used, or not by so many processes.
    """
    shard = Shard(batch_size, shard_id, num_shards)
    batches: BatchIterator = _module(data).make_train_iterator(data, shard, prefetch)
    return batches


def make_evaluations(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1
) -> Evaluations:
    """Returns what `data` is evaluated on: by name, its batches, the same ones at every call.

    No example is lost: the last batch is filled up with padding rows, whose loss weights are 0.
    Arguments as for `make_train_iterator`.
    """
    shard = Shard(batch_size, shard_id, num_shards)
    evaluations: Evaluations = _module(data).make_evaluations(data, shard)
    return evaluations


def sample_examples(data: AnyData, n: int) -> list[Example]:
    """Returns up to `n` examples that are evaluated on, not packed, to be looked at."""
    examples: list[Example] = _module(data).sample_examples(data, n)
    return examples


def provenance(data: AnyData) -> dict[str, Any]:
    """Returns what tells this data from other data: hashes and counts, fit for JSON."""
    found: dict[str, Any] = _module(data).provenance(data)
    return found


def _module(data: AnyData) -> ModuleType:
    if isinstance(data, TaskMixtureConfig):
        if data.loader == "seqio":
            from mtf.seqio import loader as seqio_loader

            return seqio_loader
        from mtf.cache import loader as cache_loader

        return cache_loader
    if isinstance(data, HubStreamConfig):
        from mtf.data import stream_loader

        return stream_loader
    from mtf.data import text_loader

    return text_loader
