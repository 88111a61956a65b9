"""Writes one shard of a task, in a worker process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.base.writing import write_failure
from mtf.data.cache.format import INCOMPLETE, ShardInfo, SplitInfo, TaskInfo, file_crc32
from mtf.data.cache.settings import CacheConfig
from mtf.data.sources.datasets import Rows, open_split
from mtf.data.tasks.task import Task
from mtf.data.text.features import encode_feature
from mtf.storage.errors import StorageError

_ROWS_PER_TICK = 100


@dataclass(frozen=True)
class ShardWork:
    """A shard to be written.

    Attributes:
      task: task whose examples are written.
      info: description of the task, without splits.
      settings: settings of the cache.
      split: split of the task.
      shard, num_shards: index of the shard in the split, and number of shards in the split.
      start, stop: range of the split's records, or of the examples from `read`.
      read: function that yields tokenized examples; None to render and tokenize records.
      rows: the split's records; None to open the dataset.
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
        """The number of records in the shard."""
        return self.stop - self.start

    @property
    def folder(self) -> Path:
        """The task's folder while the task is incomplete."""
        return self.settings.cache_dir / (self.task.name + INCOMPLETE)

    @property
    def path(self) -> Path:
        """The path of the shard."""
        name = self.settings.format.shard_name(self.split, self.shard, self.num_shards)
        return self.folder / name

    @property
    def done_path(self) -> Path:
        """The path of the shard's description, which exists when the shard is complete."""
        return self.folder / f"{self.path.name}.json"


ReadShard = Callable[[ShardWork], Iterator[dict[str, Any]]]


def write_shard(work: ShardWork) -> Iterator[tuple[int, int]]:
    """Renders, tokenizes and writes a shard and its description.

    Yields the numbers of records and examples processed since the previous yield. Raises
    UserError if the task fails on a record, or if records cannot be read.
    """
    split = SplitInfo()
    # The name must not be random, because it seeds the shuffle of the records in a TFRecord file.
    partial = work.path.with_name(f"{work.path.name}.partial")
    writer = work.settings.format.open(partial, work.info, work.settings.vocabulary.eos_id)
    num_ticked = 0
    for examples in tokenized_records(work):
        split.count(examples)
        for example in examples:
            writer.write(example)
        if split.num_rows % _ROWS_PER_TICK == 0:
            yield _ROWS_PER_TICK, split.num_examples - num_ticked
            num_ticked = split.num_examples
    writer.close()
    yield split.num_rows % _ROWS_PER_TICK, split.num_examples - num_ticked
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    checksum, num_bytes = file_crc32(partial), partial.stat().st_size
    os.replace(partial, work.path)
    split.shards.append(ShardInfo(work.path.name, split.num_examples, num_bytes, checksum))
    if work.settings.store is not None:
        (work.settings.store / work.task.name / work.path.name).upload(work.path)
        work.path.unlink()
    work.settings.write(work.done_path, split)


def tokenized_records(work: ShardWork) -> Iterator[list[dict[str, Any]]]:
    """Yields a list of tokenized examples for each record, with texts if the format keeps them."""
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
        rows = open_split(*task.source_of(work.split), data_dir=settings.data_dir)
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


# Numbers of records and examples, shared with the parent process.
_counters: Any = None


def start_worker(counters: Any) -> None:
    """Prepares a worker process, which updates `counters` and ends when its parent ends."""
    global _counters
    _counters = counters
    signals.end_with_parent()


def write_shard_in_worker(work: ShardWork) -> None:
    """Writes a shard in a worker process, and updates the shared counters."""
    try:
        for num_rows, num_examples in write_shard(work):
            with _counters.get_lock():
                _counters[0] += num_rows
                _counters[1] += num_examples
    except OSError as error:
        if isinstance(error, StorageError) or write_failure(error, work.folder) is not None:
            raise
        raise UserError(f"{work.path} cannot be written: {error}") from error
