"""Opens data of any kind as batches: endless for training, finite for evaluation.

Each kind has a module with the functions `make_train_iterator`, `evaluation_parts`, `check` and
`provenance`, which imports SeqIO or `datasets` only when it opens data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mtf.cache import loader as cache_loader
from mtf.data import mixtures, own_loader, stream_loader, text_loader
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
from mtf.data.settings import AnyData, HubStreamConfig, OwnDataConfig, TaskMixtureConfig
from mtf.seqio import loader as seqio_loader
from mtf.seqio import own
from mtf.tasks.mixtures import Mixture
from mtf.text.vocabularies import Vocabulary

mixtures.FINDERS.append(own.find_mixture)


def make_train_iterator(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1, prefetch: int = 2
) -> BatchIterator:
    """Returns the training batches of `data`.

    Args:
      data: data to train on.
      batch_size: number of rows in the global batch.
      shard_id: index of this process, whose rows start at shard_id * (batch_size // num_shards).
      num_shards: number of processes, a divisor of `batch_size`.
      prefetch: number of batches that a thread makes in advance; 0 makes each on demand.

    Raises UserError if the data cannot be used, or not with this number of processes.
    """
    shard = Shard(batch_size, shard_id, num_shards)
    return _module(data).make_train_iterator(data, shard, prefetch)


def make_evaluations(
    data: AnyData, *, batch_size: int, shard_id: int = 0, num_shards: int = 1
) -> Evaluations:
    """Returns a function for each evaluation, by name, that returns its batches.

    They are the same at every call and include every example. The last batch is padded with rows
    whose loss weights are 0. Arguments are those of `make_train_iterator`.
    """
    shard = Shard(batch_size, shard_id, num_shards)

    def batches(name: str) -> Iterator[HostBatch]:
        examples = itertools.chain.from_iterable(read() for read in parts[name])
        return eval_batches(examples, data.task_feature_lengths, data.pack, shard)

    parts: EvaluationParts = _module(data).evaluation_parts(data)
    return {name: functools.partial(batches, name) for name in parts}


def sample_examples(data: AnyData, n: int) -> list[Example]:
    """Returns up to `n` examples, not packed, from the parts of the evaluations in turn.

    If a mixture has no examples of `eval_split`, they are from `split`.
    """
    parts: EvaluationParts = _module(data).evaluation_parts(data)
    if not parts and isinstance(data, TaskMixtureConfig):
        parts = _module(data).evaluation_parts(dataclasses.replace(data, eval_split=data.split))
    return list(itertools.islice(in_turn(itertools.chain.from_iterable(parts.values())), n))


def check(data: AnyData, *, batch_size: int) -> str:
    """Checks the data of a run, of which it reads hardly any; returns a text about them.

    Arguments are those of `make_train_iterator`. Raises UserError if the data cannot be used, and
    NotCheckedError if they are on a server.
    """
    return _module(data).check(data, batch_size)


def provenance(data: AnyData) -> dict[str, Any]:
    """Returns the JSON values that identify the data, such as hashes and counts."""
    return _module(data).provenance(data)


def open_mixture(data: TaskMixtureConfig, *, check_version: bool = True) -> Mixture:
    """Returns the mixture of a config, which may be one of SeqIO's; see `mtf.data.mixtures`."""
    return mixtures.open_mixture(data, check_version=check_version)


def find_mixture(
    name: str,
    vocabulary: Vocabulary,
    module: str | None = None,
    templates: str | None = None,
) -> Mixture:
    """Returns a mixture by name, which may be one of SeqIO's; see `mtf.data.mixtures`."""
    return mixtures.find_mixture(name, vocabulary, module, templates)


def _module(data: AnyData) -> ModuleType:
    if isinstance(data, TaskMixtureConfig):
        return seqio_loader if data.loader == "seqio" else cache_loader
    if isinstance(data, OwnDataConfig):
        return own_loader
    return stream_loader if isinstance(data, HubStreamConfig) else text_loader
