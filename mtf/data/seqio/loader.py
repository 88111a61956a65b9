"""Loads a mixture with SeqIO during training (`TaskMixtureConfig` with loader="seqio").

SeqIO's pipeline renders, tokenizes, mixes and packs the examples, or reads SeqIO's caches if
`use_cached` is True. The pipeline is deterministic. Therefore, the stored position is a number of
batches, and a resumed run reads and discards this number of batches.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf.base.downloads import copied
from mtf.base.errors import UserError, did_you_mean_split
from mtf.base.extras import check_extra
from mtf.data.examples import Example
from mtf.data.mixtures import check_datasets, open_datasets, open_mixture
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator, EvaluationParts, IteratorState, Shard
from mtf.data.seqio_tasks import PURPOSE, import_seqio
from mtf.data.settings import TaskMixtureConfig
from mtf.data.sources.datasets import MissingDatasetError
from mtf.data.tasks.missing import check_missing
from mtf.data.tasks.mixtures import MT5_PREFIX
from mtf.storage import as_path, has_scheme

if TYPE_CHECKING:
    import seqio

# Prefixes of task names in mixtures for T5 and in mixtures for mT5.
_PREFIXES = ("", MT5_PREFIX)


def make_train_iterator(data: TaskMixtureConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.data.loaders.make_train_iterator`.

    Each process reads a part of the records of each dataset or, if a cache has enough files, a
    part of its files.
    """
    provider, fingerprint, missing = _open(data)
    unused = {task.name for task, rate in open_mixture(data).tasks if rate == 0}.union(missing)
    seqio = _import_seqio()
    tasks = [task for task in seqio.get_subtasks(provider) if task.name not in unused]
    without = [task.name for task in tasks if data.split not in task.splits]
    if without:
        known = sorted({name for task in tasks for name in task.splits})
        raise UserError(
            f"{provider.name}: {len(without)} of its tasks have no split {data.split!r}: "
            f"{', '.join(without[:5])}.{did_you_mean_split(data.split, known)}"
        )

    def start(num_skipped: int) -> Iterator[Mapping[str, np.ndarray]]:
        # Make a new dataset, because a second iteration over a dataset has a different order. It
        # is made in the same way as in T5X.
        dataset = seqio.get_dataset(
            provider,
            data.task_feature_lengths,
            seqio.EncDecFeatureConverter(pack=data.pack),
            dataset_split=data.split,
            use_cached=data.use_cached,
            shuffle=data.shuffle,
            num_epochs=None,
            shard_info=seqio.ShardInfo(index=shard.shard_id, num_shards=shard.num_shards),
            seed=data.seed,
            verbose=False,
        )
        dataset = dataset.batch(len(shard.rows), drop_remainder=True).skip(num_skipped)
        return dataset.prefetch(prefetch).as_numpy_iterator()

    lengths = data.task_feature_lengths
    settings = (
        f"{data.mixture_or_task_name}, split {data.split}, inputs {lengths['inputs']}, targets "
        f"{lengths['targets']}, pack {data.pack}, shuffle {data.shuffle}, seed {data.seed}, "
        f"use_cached {data.use_cached}"
    )
    identity = {
        "settings": settings,
        "data": fingerprint,
        "batch_size": shard.batch_size,
        "num_shards": shard.num_shards,
    }
    return _TrainIterator(start, identity)


def evaluation_parts(data: TaskMixtureConfig) -> EvaluationParts:
    """Returns one evaluation of all tasks that have the split `eval_split`, or {} if none has."""
    if data.eval_split is None:
        return {}
    provider, *_ = _open(data)
    all_tasks = _import_seqio().get_subtasks(provider)
    tasks = [task for task in all_tasks if data.eval_split in task.splits]
    # The tasks are read one by one, because a mixture would end when its shortest task ends.
    read = functools.partial(_all_examples, tasks, data, data.eval_split)
    return {data.mixture_or_task_name: read} if tasks else {}


def provenance(data: TaskMixtureConfig) -> dict[str, Any]:
    """See `mtf.data.loaders.provenance`."""
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
        self, start: Callable[[int], Iterator[Mapping[str, np.ndarray]]], identity: dict[str, Any]
    ):
        self._start = start
        self._identity = identity
        self._num_batches = 0
        self._batches: Iterator[Mapping[str, np.ndarray]] | None = None

    def __iter__(self) -> _TrainIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._batches is None:
            self._batches = self._start(self._num_batches)
        batch = next(self._batches)
        self._num_batches += 1
        # Without packing, SeqIO's decoder inputs contain EOS after the targets. Replace it with 0.
        tokens = batch["decoder_input_tokens"] * batch["decoder_loss_weights"]
        return {**batch, "decoder_input_tokens": tokens}

    def get_state(self) -> IteratorState:
        return {**self._identity, "num_batches": self._num_batches}

    def set_state(self, state: IteratorState) -> None:
        for name, now in self._identity.items():
            if state.get(name) != now:
                raise UserError(
                    f"the data position in the checkpoint belongs to different data: {name} was "
                    f"{state.get(name)} and is now {now}"
                )
        self._num_batches = state["num_batches"]
        self._batches = None


def _import_seqio() -> Any:
    module = import_seqio()
    import tensorflow as tf

    # Otherwise, TensorFlow would allocate all memory of every GPU.
    tf.config.set_visible_devices([], "GPU")
    return module


def _open(data: TaskMixtureConfig) -> tuple[seqio.Task | seqio.Mixture, str, dict[str, str]]:
    """Returns SeqIO's task or mixture, its fingerprint, and a dict from missing tasks to reasons.

    Raises UserError if any tasks are missing, unless `data.allow_missing_tasks` is set.
    """
    seqio = _import_seqio()
    from mtf.data.seqio_tasks import custom
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    name = data.mixture_or_task_name
    if data.use_cached and not data.cache_dirs:
        raise UserError("data.use_cached=True needs data.cache_dir, a directory of SeqIO's caches")
    missing = _missing_tasks(data)
    found = open_mixture(data)
    if data.use_cached:
        seqio.add_global_cache_dirs(local_cache_dirs(data))
    if any(isinstance(task, custom.SeqioTask) for task, _ in found.tasks):
        provider = custom.provider(name, data.vocabulary)
        return provider, f"{custom.fingerprint(provider)}/{data.vocabulary.fingerprint()}", missing
    built = seqio_tasks.build(
        found, data.vocabulary, data.data_dir, missing, use_cached=data.use_cached
    )
    parts = [built.fingerprints[name], built.vocabulary]
    if missing:
        parts.append(f"{zlib.crc32(' '.join(sorted(missing)).encode()):08x}")
    return built.provider, "/".join(parts), missing


def local_cache_dirs(data: TaskMixtureConfig) -> list[str]:
    """Returns, for each of SeqIO's caches, a path that TensorFlow can read.

    If TensorFlow cannot read the path of a cache (for example `s3://`), the files that the run
    needs are copied to this machine. These are the files of the mixture's tasks, but only those of
    the splits to train on and to evaluate on.
    """
    tasks = {prefix + task.name for task, _ in open_mixture(data).tasks for prefix in _PREFIXES}

    def is_read(file: str) -> bool:
        task, _, name = file.partition("/")
        split, is_examples, _ = name.partition(".tfrecord")
        return task in tasks and (not is_examples or split in (data.split, data.eval_split))

    return [
        str(copied(folder, "data.cache_dir", is_read))
        if has_scheme(folder) and not folder.startswith("gs://")
        else folder
        for folder in data.cache_dirs
    ]


def _missing_tasks(data: TaskMixtureConfig) -> dict[str, str]:
    """Returns a dict that maps the missing tasks of a mixture to reasons; does not import SeqIO.

    If `data.use_cached` is True, a task is missing if it has no SeqIO cache. Otherwise, a task is
    missing if its dataset has no records in `data.split`. Raises UserError if any tasks are
    missing, unless `data.allow_missing_tasks` is set.
    """
    tasks = open_mixture(data).tasks
    if data.use_cached:
        folders = [os.path.expanduser(folder) for folder in data.cache_dirs]

        def is_cached(name: str) -> bool:
            names = [f"{prefix}{name}" for prefix in _PREFIXES]
            paths = itertools.product(folders, names, ("COMPLETED",))
            return any(as_path(os.path.join(*path)).exists() for path in paths)

        reason = f"there is no SeqIO cache of this task in {', '.join(folders)}"
        missing = {task.name: reason for task, _ in tasks if not is_cached(task.name)}
    else:
        opened = open_datasets(data)
        missing = {n: str(x) for n, x in opened.items() if isinstance(x, MissingDatasetError)}
    name, advice = data.mixture_or_task_name, ""
    if data.cache_dirs and data.use_cached:
        advice = (
            f"To write them, run python -m mtf.cache '{name}' --format seqio --output "
            f"{data.cache_dirs[0]}"
        )
    check_missing(name, len(tasks), missing, data.allow_missing_tasks, advice)
    return missing


def check(data: TaskMixtureConfig, batch_size: int) -> str:
    """See `mtf.data.loaders.check`; checks that SeqIO is installed, but does not import it."""
    check_extra("seqio", PURPOSE, "seqio")
    if data.use_cached:
        num_tasks = len(open_mixture(data).tasks)
        missing = _missing_tasks(data)
        folders = ", ".join(data.cache_dirs)
        return f"{folders}: SeqIO caches of {num_tasks - len(missing)} of {num_tasks} tasks"
    return check_datasets(data)


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
