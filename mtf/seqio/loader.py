"""Loads a mixture with SeqIO during training (`TaskMixtureConfig` with loader="seqio").

SeqIO's pipeline renders, tokenizes, mixes and packs, or reads SeqIO's caches (`use_cached`). It is
deterministic, so a position is a number of batches; to resume, the pipeline runs again up to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf.data.examples import Example
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator, EvaluationParts, IteratorState, Shard
from mtf.data.settings import TaskMixtureConfig
from mtf.errors import UserError, did_you_mean_split

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf


def make_train_iterator(data: TaskMixtureConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.loaders.make_train_iterator`.

    Each process reads its own records of each dataset, or its own files of a cache with enough.
    """
    provider, fingerprint = _open(data)
    tasks = _import_seqio().get_subtasks(provider)
    without = [task.name for task in tasks if data.split not in task.splits]
    if without:
        known = sorted({name for task in tasks for name in task.splits})
        raise UserError(
            f"{provider.name}: {len(without)} of its tasks have no split {data.split!r}: "
            f"{', '.join(without[:5])}.{did_you_mean_split(data.split, known)}"
        )

    def start(num_skipped: int) -> Iterator[Mapping[str, np.ndarray]]:
        # Iterating over the same dataset again would give another order.
        dataset = make_dataset(provider, data, shard.shard_id, shard.num_shards)
        dataset = dataset.batch(len(shard.rows), drop_remainder=True).skip(num_skipped)
        return dataset.prefetch(prefetch).as_numpy_iterator()

    lengths = data.task_feature_lengths
    settings = (
        f"{data.mixture_or_task_name}, split {data.split}, inputs {lengths['inputs']}, targets "
        f"{lengths['targets']}, pack {data.pack}, shuffle {data.shuffle}, seed {data.seed}, "
        f"use_cached {data.use_cached}"
    )
    place = {
        "settings": settings,
        "data": fingerprint,
        "batch_size": shard.batch_size,
        "num_shards": shard.num_shards,
    }
    return _TrainIterator(start, place)


def make_dataset(
    provider: seqio.Task | seqio.Mixture,
    data: TaskMixtureConfig,
    shard_id: int = 0,
    num_shards: int = 1,
) -> tf.data.Dataset:
    """Returns SeqIO's endless dataset of a shard's rows, as in T5X."""
    seqio = _import_seqio()
    return seqio.get_dataset(
        provider,
        data.task_feature_lengths,
        seqio.EncDecFeatureConverter(pack=data.pack),
        dataset_split=data.split,
        use_cached=data.use_cached,
        shuffle=data.shuffle,
        num_epochs=None,
        shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
        seed=data.seed,
        verbose=False,
    )


def evaluation_parts(data: TaskMixtureConfig) -> EvaluationParts:
    """Returns `eval_split` of the tasks that have it; see `mtf.loaders`."""
    if data.eval_split is None:
        return {}
    provider, _ = _open(data)
    all_tasks = _import_seqio().get_subtasks(provider)
    tasks = [task for task in all_tasks if data.eval_split in task.splits]
    # SeqIO's mixture would end at the end of its shortest task.
    read = functools.partial(_all_examples, tasks, data, data.eval_split)
    return {data.mixture_or_task_name: [read]} if tasks else {}


def provenance(data: TaskMixtureConfig) -> dict[str, Any]:
    """See `mtf.loaders.provenance`."""
    _, fingerprint = _open(data)
    vocabulary = data.vocabulary.fingerprint()
    return {"mixture": data.mixture_or_task_name, "data": fingerprint, "vocabulary": vocabulary}


class _TrainIterator:
    def __init__(
        self, start: Callable[[int], Iterator[Mapping[str, np.ndarray]]], place: dict[str, Any]
    ):
        self._start = start
        self._place = place
        self._num_batches = 0
        self._batches: Iterator[Mapping[str, np.ndarray]] | None = None

    def __iter__(self) -> _TrainIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._batches is None:
            self._batches = self._start(self._num_batches)
        batch = next(self._batches)
        self._num_batches += 1
        # Without packing, SeqIO feeds EOS to the decoder a second time after the targets.
        tokens = batch["decoder_input_tokens"] * batch["decoder_loss_weights"]
        return {**batch, "decoder_input_tokens": tokens}

    def get_state(self) -> IteratorState:
        return {**self._place, "num_batches": self._num_batches}

    def set_state(self, state: IteratorState) -> None:
        for name, now in self._place.items():
            if state.get(name) != now:
                raise UserError(
                    f"the stored data position belongs to different data: {name} was "
                    f"{state.get(name)} and is now {now}"
                )
        self._num_batches = state["num_batches"]
        self._batches = None


def _import_seqio() -> Any:
    from mtf.seqio.registry import import_seqio

    module = import_seqio()
    import tensorflow as tf

    # Otherwise TensorFlow allocates all memory of every GPU.
    tf.config.set_visible_devices([], "GPU")
    return module


def _open(data: TaskMixtureConfig) -> tuple[seqio.Task | seqio.Mixture, str]:
    """Returns SeqIO's task or mixture, and a fingerprint of it and its vocabulary."""
    seqio = _import_seqio()
    from mtf.seqio import tasks as seqio_tasks

    name = data.mixture_or_task_name
    built = seqio_tasks.build(name, data.vocabulary, data.data_dir, data.templates)
    if data.use_cached:
        if data.cache_dir is None:
            raise UserError("data.use_cached needs data.cache_dir, the directory of SeqIO's caches")
        seqio.add_global_cache_dirs([data.cache_dir])
        missing = [task.name for task in seqio.get_subtasks(built.provider) if not task.cache_dir]
        if missing:
            raise UserError(
                f"data.cache_dir: {data.cache_dir} has no SeqIO caches of {len(missing)} tasks of "
                f"{name}: {', '.join(missing[:5])}. To write them, run python -m mtf.cache {name} "
                f"--format seqio --output {data.cache_dir}"
            )
    return built.provider, f"{built.fingerprints[name]}/{built.vocabulary}"


def _all_examples(
    tasks: Sequence[seqio.Task], data: TaskMixtureConfig, split: str
) -> Iterator[Example]:
    for task in tasks:
        examples = task.get_dataset(
            data.task_feature_lengths,
            split=split,
            use_cached=data.use_cached,
            shuffle=False,
            seed=data.seed,
        )
        for example in examples.as_numpy_iterator():
            yield Example(example["inputs"], example["targets"])
