"""Writes one shard of a task, in a worker process."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtf import signals
from mtf.cache.format import INCOMPLETE, ShardInfo, SplitInfo, TaskInfo, file_crc32, write_json
from mtf.cache.settings import CacheConfig
from mtf.errors import UserError
from mtf.sources.datasets import LOCAL, Rows, open_split
from mtf.sources.files import file_states
from mtf.storage_errors import StorageError
from mtf.tasks.task import Task
from mtf.text.features import encode_feature
from mtf.writing import write_failure

_ROWS_PER_TICK = 100


@dataclass(frozen=True)
class ShardWork:
    """A shard to be written.

    Attributes:
      task: task whose examples are written.
      info: description of the task, without splits.
      settings: settings of the cache.
      split: split of the task.
      shard, num_shards: index of the shard in the split, and number of shards.
      start, stop: range of the split's records, or of the examples from `read`.
      read: function that yields tokenized examples, instead of rendering records.
      rows: the split's records; None: the dataset is opened.
    """

    task: Task
    info: TaskInfo
    settings: CacheConfig
    split: str
    shard: int
    num_shards: int
    start: int
    stop: int
    read: ReadShard | None = None
    rows: Rows | None = None

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return self.stop - self.start

    @property
    def folder(self) -> Path:
        """The task's folder while it is incomplete."""
        return self.settings.cache_dir / (self.task.name + INCOMPLETE)

    @property
    def path(self) -> Path:
        """Path of the shard."""
        name = self.settings.format.shard_name(self.split, self.shard, self.num_shards)
        return self.folder / name

    @property
    def done_path(self) -> Path:
        """Path of the shard's description, which exists when the shard is complete."""
        return self.folder / f"{self.path.name}.json"


ReadShard = Callable[[ShardWork], Iterator[dict[str, Any]]]
Tick = Callable[[int, int], None]


def write_shard(work: ShardWork, tick: Tick) -> SplitInfo:
    """Renders, tokenizes and writes a shard; returns its description.

    Calls `tick` with the numbers of records and examples since the previous call. Raises UserError
    if the task fails on a record, or records cannot be read.
    """
    split = SplitInfo()
    # Not `writing.replacing`, because this name seeds the shuffle of a TFRecord file.
    partial = work.path.with_name(f"{work.path.name}.partial")
    writer = work.settings.format.open(partial, work.info, work.settings.vocabulary.eos_id)
    num_ticked = 0
    for examples in tokenized_records(work):
        split.num_rows += 1
        split.num_dropped += not examples
        for example in examples:
            split.count({name: example[name] for name in ("inputs", "targets") if name in example})
            writer.write(example)
        if split.num_rows % _ROWS_PER_TICK == 0:
            tick(_ROWS_PER_TICK, split.num_examples - num_ticked)
            num_ticked = split.num_examples
    writer.close()
    tick(split.num_rows % _ROWS_PER_TICK, split.num_examples - num_ticked)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    checksum, num_bytes = file_crc32(partial), partial.stat().st_size
    os.replace(partial, work.path)
    split.shards.append(ShardInfo(work.path.name, split.num_examples, num_bytes, checksum))
    if work.settings.store is not None:
        (work.settings.store / work.task.name / work.path.name).upload(work.path)
        work.path.unlink()
    write_json(work.done_path, split)
    work.settings.publish(work.done_path)
    return split


def tokenized_records(work: ShardWork) -> Iterator[list[dict[str, Any]]]:
    """Yields the examples of each record, with their text if the format keeps it."""
    if work.read is not None:
        yield from ([example] for example in work.read(work))
        return
    task, settings = work.task, work.settings
    encode = functools.lru_cache(maxsize=4096)(
        functools.partial(encode_feature, settings.vocabulary, add_eos=False)
    )

    def ids(value: Any) -> np.ndarray:
        return encode(value) if isinstance(value, str) else np.atleast_1d(value)

    rows = work.rows
    if rows is None:
        source_split = task.source_split(work.split)
        rows = open_rows(task.dataset, task.subset, source_split, settings.data_dir)
    for index, row in enumerate(rows.rows(work.start, work.stop), start=work.start):
        texts = task.row_examples(row, index, work.split, settings.seed)
        examples = [
            {name: ids(text[name]).astype(dtype) for name, dtype in work.info.features.items()}
            for text in texts
        ]
        if settings.format.keeps_text:
            for example, text in zip(examples, texts, strict=True):
                names = [name for name in ("inputs", "targets") if name in example]
                example |= {f"{name}_pretokenized": text[name] for name in names}
        yield examples


def open_rows(dataset: str, subset: str | None, split: str, data_dir: str | None) -> Rows:
    """Calls `open_split` once per process, or again if local files have changed."""
    states = file_states(split) if dataset in LOCAL else ()
    return _open_rows(dataset, subset, split, data_dir, states)


@functools.lru_cache(maxsize=256)
def _open_rows(
    dataset: str, subset: str | None, split: str, data_dir: str | None, states: tuple[str, ...]
) -> Rows:
    return open_split(dataset, subset, split, data_dir=data_dir)


# Numbers of records and examples, shared with the parent process.
_counters: Any = None


def start_worker(counters: Any) -> None:
    """Prepares a worker process, which ends with its parent."""
    global _counters
    _counters = counters
    # Signals may reach the whole process group; the parent ends its workers.
    for number in signals.NUMBERS:
        signal.signal(number, signal.SIG_IGN)

    def die_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()


def write_shard_in_worker(work: ShardWork) -> SplitInfo:
    """Calls `write_shard` and adds to the counters."""

    def tick(num_rows: int, num_examples: int) -> None:
        with _counters.get_lock():
            _counters[0] += num_rows
            _counters[1] += num_examples

    try:
        return write_shard(work, tick)
    except OSError as error:
        if isinstance(error, StorageError) or write_failure(error, work.folder) is not None:
            raise
        raise UserError(f"{work.path} was not written: {error}") from error
