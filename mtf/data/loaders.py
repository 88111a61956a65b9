"""Opens any kind of data as an endless sequence of training batches and as finite evaluations.

The module that loads a kind of data (`loaded_by` of its settings) has the functions
`make_train_iterator`, `evaluation_parts`, `check` and `provenance`. These functions import SeqIO or
`datasets` only when they open the data.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mtf.data.examples import Example
from mtf.data.packing import HostBatch
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    Evaluations,
    Shard,
    eval_batches,
    in_turn,
)
from mtf.data.settings import AnyData, CustomDataConfig, TaskMixtureConfig
from mtf.data.workers import WorkersIterator


def make_train_iterator(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1, prefetch: int = 2
) -> BatchIterator:
    """Returns an endless iterator over the training batches of `data`.

    Args:
      data: data to train on.
      batch_size: number of rows in the global batch.
      shard_id: index of this process, whose rows start at shard_id * (batch_size // num_shards).
      num_shards: number of processes, a divisor of `batch_size`.
      prefetch: number of batches that a background thread, or each worker, prepares in advance.

    Raises UserError if the data cannot be used, or cannot be divided among the processes.
    """
    shard = Shard(batch_size, shard_id, num_shards)
    if not isinstance(data, CustomDataConfig) and data.num_workers:
        return WorkersIterator(data, shard, prefetch, data.num_workers)
    return _module(data).make_train_iterator(data, shard, prefetch)


def make_evaluations(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1
) -> Evaluations:
    """Returns a dict that maps the name of each evaluation to a function that returns its batches.

    Each function returns the same batches on every call, and they include every example. The last
    batch is padded with rows whose loss weights are 0. For the arguments, see
    `make_train_iterator`.
    """
    shard = Shard(batch_size, shard_id, num_shards)

    def batches(name: str) -> Iterator[HostBatch]:
        return eval_batches(parts[name](), data.task_feature_lengths, data.pack, shard)

    parts: EvaluationParts = _module(data).evaluation_parts(data)
    return {name: functools.partial(batches, name) for name in parts}


def sample_examples(data: AnyData, n: int) -> list[Example]:
    """Returns up to `n` examples, alternating between all evaluations.

    If a mixture has no examples in `eval_split`, the examples are taken from `split` instead.
    """
    parts: EvaluationParts = _module(data).evaluation_parts(data)
    if not parts and isinstance(data, TaskMixtureConfig):
        parts = _module(data).evaluation_parts(dataclasses.replace(data, eval_split=data.split))
    return list(itertools.islice(in_turn(parts.values()), n))


def check(data: AnyData, *, batch_size: int) -> str:
    """Checks the data for a run without reading much of it, and returns a summary of the data.

    For the arguments, see `make_train_iterator`. Raises UserError if the data cannot be used, and
    NotCheckedError if the data is on a server and is therefore not checked.
    """
    return _module(data).check(data, batch_size)


def provenance(data: AnyData) -> dict[str, Any]:
    """Returns a dict of JSON values, such as hashes and counts, that identify the data."""
    return _module(data).provenance(data)


def _module(data: AnyData) -> ModuleType:
    return importlib.import_module(data.loaded_by)
