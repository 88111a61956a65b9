"""Tokenizes a mixture into memory when a run starts (`TaskMixtureConfig` with loader="memory")."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mtf.cache.build import cache_info, task_info
from mtf.cache.format import MixtureInfo, RecordCodec, ShardInfo, SplitInfo, TaskInfo
from mtf.cache.settings import CacheConfig
from mtf.cache.writer import ShardWork, tokenized_records
from mtf.data.mixtures import open_mixture
from mtf.data.settings import TaskMixtureConfig
from mtf.errors import UserError
from mtf.progress import progress_bar
from mtf.sources.datasets import LOCAL, MissingDatasetError, open_split
from mtf.sources.files import file_states
from mtf.tasks.mixtures import Mixture
from mtf.tasks.task import Task

_ROWS_PER_TICK = 1000


class MemoryCache:
    """The tokenized examples of a mixture, with the methods of `TokenCache`.

    Attributes:
      path: what messages show instead of a directory.
      info: see `TokenCache`.
      missing_splits: split → why it is missing, for splits that a task's dataset lacks.
    """

    def __init__(self, mixture: Mixture, settings: CacheConfig):
        """Reads nothing yet; `settings.cache_dir` is not used."""
        self.path = Path("in memory")
        self.info = cache_info(settings)
        self._mixture = mixture
        self._settings = settings
        self._tasks = {task.name: task_info(task, settings) for task, _ in mixture.tasks}
        self._records: dict[tuple[str, str], list[bytes]] = {}
        self._loaded: set[str] = set()
        self._absent: dict[str, str] = {}
        self.missing_splits: dict[str, str] = {}

    def load(self, split: str) -> MemoryCache:
        """Tokenizes a split of all tasks that have it; returns this cache.

        Tasks without a dataset to train on become absent. Raises UserError if a task fails on a
        record.
        """
        if split not in self._loaded:
            for task, _ in self._mixture.tasks:
                if split in task.splits or not task.splits:
                    self._load(task, split)
            self._loaded.add(split)
        return self

    def mixture(self, name: str) -> MixtureInfo:
        """Returns the mixture; raises UserError for another name."""
        made = self._mixture
        if name == made.name:
            rates = {t.name: rate for t, rate in made.tasks if t.name not in self._absent}
            return MixtureInfo(name, made.vocabulary, made.fingerprint, rates, self._absent)
        raise UserError(f"the data is the mixture {made.name}, not {name}")

    def find(self, name: str) -> TaskInfo | None:
        """Returns the description of a task with its splits, or None if it is missing."""
        return self._tasks.get(name)

    @property
    def where(self) -> str:
        """The data, for messages."""
        return "the data"

    def split(self, task: TaskInfo, split: str) -> MemorySplit:
        """Returns the examples of a split that is loaded."""
        return MemorySplit(RecordCodec(task.features), self._records[task.name, split])

    def _load(self, task: Task, split: str) -> None:
        try:
            source = (task.dataset, task.subset, task.source_split(split))
            rows = open_split(*source, data_dir=self._settings.data_dir)
        except MissingDatasetError as error:
            if split == "train":
                self._absent[task.name] = str(error)
            self.missing_splits.setdefault(split, str(error))
            return
        info = self._tasks[task.name]
        codec, content, records = RecordCodec(info.features), SplitInfo(), []
        work = ShardWork(task, info, self._settings, split, 0, 1, 0, len(rows), rows=rows.kept())
        checksum = 0
        with progress_bar(f"tokenizing {task.name} ({split})", len(rows)) as advance:
            for examples in tokenized_records(work):
                content.num_rows += 1
                content.num_dropped += not examples
                for example in examples:
                    names = (name for name in ("inputs", "targets") if name in example)
                    content.count({name: example[name] for name in names})
                    records.append(codec.encode(example))
                    checksum = zlib.crc32(records[-1], checksum)
                if content.num_rows % _ROWS_PER_TICK == 0:
                    advance(_ROWS_PER_TICK)
        num_bytes = sum(map(len, records))
        content.shards.append(ShardInfo("memory", len(records), num_bytes, checksum))
        info.splits[split] = content
        self._records[task.name, split] = records


class MemorySplit:
    """The examples of a split of a task, by index (see `SplitReader`)."""

    def __init__(self, codec: RecordCodec, records: Sequence[bytes]):
        self._codec = codec
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def examples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Returns examples with all features."""
        return self._read(numbers, self._codec.decode)

    def pairs(self, numbers: Sequence[int]) -> list[tuple[Any, Any]]:
        """Returns (inputs, targets) of examples, without EOS."""
        return self._read(numbers, self._codec.decode_pair)

    def _read(self, numbers: Sequence[int], decode: Callable[[bytes], Any]) -> list[Any]:
        return [decode(self._records[number]) for number in numbers]


_OPENED: dict[tuple[str, ...], MemoryCache] = {}
_MAX_OPENED = 4


def open_memory(data: TaskMixtureConfig, split: str) -> MemoryCache:
    """Returns the tokenized mixture of a config, in which a split is loaded.

    A mixture is tokenized once in a process, unless its files have changed.
    """
    made = open_mixture(data)
    files = [n for t, _ in made.tasks if t.dataset in LOCAL for n in t.splits.values()]
    states = [state for name in files for state in file_states(name)]
    key = (made.name, made.fingerprint, data.vocabulary.fingerprint(), str(data.data_dir), *states)
    if key not in _OPENED:
        if len(_OPENED) == _MAX_OPENED:
            del _OPENED[next(iter(_OPENED))]
        settings = CacheConfig(Path(), data.vocabulary, data_dir=data.data_dir)
        _OPENED[key] = MemoryCache(made, settings)
    return _OPENED[key].load(split)
