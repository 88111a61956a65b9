"""Tokenizes a mixture into memory when a run starts (`TaskMixtureConfig` with loader="memory")."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtf.base.progress import progress_bar
from mtf.data.cache.build import cache_info, task_info
from mtf.data.cache.format import MixtureInfo, RecordCodec, ShardInfo, SplitInfo, TaskInfo
from mtf.data.cache.reader import SplitReader
from mtf.data.cache.settings import CacheConfig
from mtf.data.cache.writer import ShardWork, tokenized_records
from mtf.data.mixtures import open_mixture
from mtf.data.settings import TaskMixtureConfig
from mtf.data.sources.datasets import MissingDatasetError, open_split
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary

_logger = logging.getLogger(__name__)
_ROWS_PER_TICK = 1000


class MemoryCache:
    """The tokenized examples of a mixture, in memory, with some methods of `TokenCache`.

    Attributes:
      path: text that messages show in place of a cache's directory.
      where: name that messages use for the data.
      info: see `TokenCache`.
      missing_splits: dict mapping each split missing from a task's dataset to the reason.
    """

    path = Path("in memory")
    where = "the data"

    def __init__(self, mixture: Mixture, settings: CacheConfig):
        """Initializes a cache without examples (see `load`); does not use `settings.cache_dir`."""
        self.info = cache_info(settings)
        self._mixture = mixture
        self._settings = settings
        self._tasks = {task.name: task_info(task, settings) for task, _ in mixture.tasks}
        self._records: dict[tuple[str, str], list[bytes]] = {}
        self._loaded: set[str] = set()
        self._absent: dict[str, str] = {}
        self.missing_splits: dict[str, str] = {}

    def load(self, split: str) -> MemoryCache:
        """Tokenizes a split for all tasks that have this split, and returns this cache.

        Tasks whose training data is missing are marked as absent. Raises UserError if a task fails
        on a record.
        """
        for task, _ in self._mixture.tasks if split not in self._loaded else ():
            if split in task.splits or not task.splits:
                self._load(task, split)
        self._loaded.add(split)
        return self

    def mixture(self, name: str) -> MixtureInfo:
        """Returns the description of this mixture, with `name` as its name."""
        made = self._mixture
        rates = {t.name: rate for t, rate in made.tasks if t.name not in self._absent}
        return MixtureInfo(name, made.vocabulary, made.fingerprint, rates, self._absent)

    def find(self, name: str) -> TaskInfo | None:
        """Returns the description of a task with its splits, or None if there is no such task."""
        return self._tasks.get(name)

    def split(self, task: TaskInfo, split: str) -> MemorySplit:
        """Returns a reader of a split that `load` has tokenized."""
        return MemorySplit(RecordCodec(task.features), self._records[task.name, split])

    def _load(self, task: Task, split: str) -> None:
        try:
            rows = open_split(*task.source_of(split), data_dir=self._settings.data_dir)
        except MissingDatasetError as error:
            if split == "train":
                self._absent[task.name] = str(error)
            elif task.records is not None:  # The user has named these files.
                raise
            self.missing_splits.setdefault(split, str(error))
            return
        info = self._tasks[task.name]
        codec, content, records = RecordCodec(info.features), SplitInfo(), []
        work = ShardWork(task, info, self._settings, split, 0, 1, 0, len(rows), rows=rows.kept())
        checksum = 0
        with progress_bar(f"tokenizing {task.name} ({split})", len(rows)) as advance:
            for examples in tokenized_records(work):
                content.count(examples)
                for example in examples:
                    records.append(codec.encode(example))
                    checksum = zlib.crc32(records[-1], checksum)
                if content.num_rows % _ROWS_PER_TICK == 0:
                    advance(_ROWS_PER_TICK)
        num_bytes = sum(map(len, records))
        if task.is_custom and content.num_dropped:
            number = f"{content.num_dropped:,} of {content.num_rows:,} records"
            _logger.warning("%s (%s): %s make no example", task.name, split, number)
        content.shards.append(ShardInfo("memory", len(records), num_bytes, checksum))
        info.splits[split] = content
        self._records[task.name, split] = records


class MemorySplit(SplitReader):
    """A `SplitReader` of records in memory."""

    def __init__(self, codec: RecordCodec, records: Sequence[bytes]):
        self._codec = codec
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def examples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """See `SplitReader`."""
        return [self._codec.decode(self._records[number]) for number in numbers]


@functools.lru_cache(maxsize=4)
def _opened(
    mixture: Mixture, vocabulary: Vocabulary, data_dir: str | None, states: tuple[str, ...]
) -> MemoryCache:
    """Returns a new cache without examples, or the last cache made from the same arguments."""
    return MemoryCache(mixture, CacheConfig(Path(), vocabulary, data_dir=data_dir))


def open_memory(data: TaskMixtureConfig, split: str) -> MemoryCache:
    """Returns the tokenized mixture that a config selects, with the given split loaded.

    The last few mixtures are kept in memory, and tokenized again only if their files have changed.
    """
    made = open_mixture(data)
    sources = [(task.records, task.splits.values()) for task, _ in made.tasks if task.records]
    states = tuple(state for each, names in sources for n in names for state in each.states(n))
    return _opened(made, data.vocabulary, data.data_dir, states).load(split)
