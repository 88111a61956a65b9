"""Loads a mixture with SeqIO during training (`TaskMixtureConfig` with loader="seqio").

SeqIO's pipeline renders, tokenizes, mixes and packs, or reads SeqIO's caches (`use_cached`). It is
deterministic, so a position is a number of batches; to resume, the pipeline runs again up to it.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf.data.examples import Example
from mtf.data.mixtures import check_datasets, open_datasets, open_mixture
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator, EvaluationParts, IteratorState, Shard
from mtf.data.settings import TaskMixtureConfig
from mtf.downloads import copied
from mtf.errors import UserError, did_you_mean_split
from mtf.seqio import own
from mtf.seqio.importing import check_seqio
from mtf.sources.datasets import MissingDatasetError
from mtf.storage import as_path, is_remote
from mtf.tasks.missing import check_missing
from mtf.tasks.mixtures import MT5_PREFIX

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf

# Tasks of the same name in mixtures for T5 and for mT5.
_PREFIXES = ("", MT5_PREFIX)


def make_train_iterator(data: TaskMixtureConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.loaders.make_train_iterator`.

    Each process reads its own records of each dataset, or its own files of a cache with enough.
    """
    provider, fingerprint, missing = _open(data)
    unused = {task.name for task, rate in open_mixture(data).tasks if rate == 0}.union(missing)
    tasks = [task for task in _import_seqio().get_subtasks(provider) if task.name not in unused]
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
    provider, *_ = _open(data)
    all_tasks = _import_seqio().get_subtasks(provider)
    tasks = [task for task in all_tasks if data.eval_split in task.splits]
    # SeqIO's mixture would end at the end of its shortest task.
    read = functools.partial(_all_examples, tasks, data, data.eval_split)
    return {data.mixture_or_task_name: [read]} if tasks else {}


def provenance(data: TaskMixtureConfig) -> dict[str, Any]:
    """See `mtf.loaders.provenance`."""
    _, fingerprint, missing = _open(data)
    return {
        "mixture": data.mixture_or_task_name,
        "data": fingerprint,
        "vocabulary": data.vocabulary.fingerprint(),
        "inputs_add_eos": any(task.inputs_add_eos for task, _ in open_mixture(data).tasks),
        "num_tasks": len(open_mixture(data).tasks),
        "missing_tasks": missing,
    }


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
                    f"the data position in the checkpoint belongs to different data: {name} was "
                    f"{state.get(name)} and is now {now}"
                )
        self._num_batches = state["num_batches"]
        self._batches = None


def _import_seqio() -> Any:
    from mtf.seqio.importing import import_seqio

    module = import_seqio()
    import tensorflow as tf

    # Otherwise TensorFlow allocates all memory of every GPU.
    tf.config.set_visible_devices([], "GPU")
    return module


def _open(data: TaskMixtureConfig) -> tuple[seqio.Task | seqio.Mixture, str, dict[str, str]]:
    """Returns SeqIO's task or mixture, a fingerprint of it, and missing task → reason.

    Raises UserError if tasks are missing, unless `data.allow_missing_tasks`.
    """
    seqio = _import_seqio()
    from mtf.seqio import tasks as seqio_tasks

    name = data.mixture_or_task_name
    if data.use_cached and not data.cache_dirs:
        raise UserError("data.use_cached needs data.cache_dir, the directory of SeqIO's caches")
    missing = _checked(data, missing_tasks(data, _exists))
    found = open_mixture(data)
    if data.use_cached:
        seqio.add_global_cache_dirs(local_cache_dirs(data))
    if any(isinstance(task, own.SeqioTask) for task, _ in found.tasks):
        provider = own.provider(name, data.vocabulary)
        return provider, f"{own.fingerprint(provider)}/{data.vocabulary.fingerprint()}", missing
    built = seqio_tasks.build_mixture(
        found, data.vocabulary, data.data_dir, missing, use_cached=data.use_cached
    )
    parts = [built.fingerprints[name], built.vocabulary]
    if missing:
        parts.append(f"{zlib.crc32(' '.join(sorted(missing)).encode()):08x}")
    return built.provider, "/".join(parts), missing


def _exists(path: str) -> bool:
    if not is_remote(path) or _needs_copy(path):
        return as_path(path).exists()
    import tensorflow as tf

    return bool(tf.io.gfile.exists(path))


def _needs_copy(path: str) -> bool:
    """Returns whether a path is in a store that TensorFlow does not know."""
    return is_remote(path) and not path.startswith("gs://")


def local_cache_dirs(data: TaskMixtureConfig) -> list[str]:
    """Returns the directories of SeqIO's caches as TensorFlow can read them.

    Of a directory at `s3://`, the files of the mixture's tasks and of the splits that are read are
    copied to this machine.
    """
    tasks = {prefix + task.name for task, _ in open_mixture(data).tasks for prefix in _PREFIXES}

    def is_read(file: str) -> bool:
        task, _, name = file.partition("/")
        split, is_examples, _ = name.partition(".tfrecord")
        return task in tasks and (not is_examples or split in (data.split, data.eval_split))

    folders = data.cache_dirs
    return [str(copied(f, "data.cache_dir", is_read)) if _needs_copy(f) else f for f in folders]


def missing_tasks(
    data: TaskMixtureConfig, exists: Callable[[str], bool] = os.path.exists
) -> dict[str, str]:
    """Returns the missing tasks of a mixture and the reasons; does not need SeqIO.

    With `data.use_cached`, a task without a SeqIO cache is missing, otherwise a task without the
    records of `data.split`. `exists` returns whether a path exists.
    """
    tasks = open_mixture(data).tasks
    if data.use_cached:
        folders = [os.path.expanduser(folder) for folder in data.cache_dirs]

        def is_cached(name: str) -> bool:
            names = [f"{prefix}{name}" for prefix in _PREFIXES]
            paths = itertools.product(folders, names, ("COMPLETED",))
            return any(exists(os.path.join(*path)) for path in paths)

        reason = f"{', '.join(folders)} has no SeqIO cache of this task"
        return {task.name: reason for task, _ in tasks if not is_cached(task.name)}
    opened = open_datasets(data)
    return {name: str(x) for name, x in opened.items() if isinstance(x, MissingDatasetError)}


def check(data: TaskMixtureConfig, batch_size: int) -> str:
    """See `mtf.loaders.check`; does not need SeqIO's modules, only that it is installed."""
    check_seqio()
    if data.use_cached:
        num_tasks = len(open_mixture(data).tasks)
        missing = _checked(data, missing_tasks(data, lambda path: as_path(path).exists()))
        folders = ", ".join(data.cache_dirs)
        return f"{folders}: SeqIO caches of {num_tasks - len(missing)} of {num_tasks} tasks"
    return check_datasets(data)


def _checked(data: TaskMixtureConfig, missing: dict[str, str]) -> dict[str, str]:
    """Returns `missing`; raises UserError if there are any, unless `data.allow_missing_tasks`."""
    name, advice = data.mixture_or_task_name, ""
    if data.cache_dirs and data.use_cached:
        advice = (
            f"To write them, run python -m mtf.cache '{name}' --format seqio --output "
            f"{data.cache_dirs[0]}"
        )
    num_tasks = len(open_mixture(data).tasks)
    check_missing(name, num_tasks, missing, data.allow_missing_tasks, advice)
    return missing


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
