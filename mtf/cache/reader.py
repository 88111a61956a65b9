"""Reads tasks of a cache by name and examples by index.

Uses ArrayRecord's reader, because Grain's data source starts a thread pool at every read, which
takes longer than reading a few records.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtf.cache.format import (
    INCOMPLETE,
    CacheInfo,
    MixtureInfo,
    RecordCodec,
    ShardInfo,
    SplitInfo,
    TaskInfo,
    file_crc32,
    mixture_path,
    read_json,
)
from mtf.cache.recording import is_record
from mtf.copies import local_copy, nearest_copy
from mtf.downloads import as_user_errors, copied
from mtf.errors import UserError, did_you_mean
from mtf.storage import AnyPath, StorePath, as_path

# No read-ahead and no threads, because records are read in random order.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 1 << 15
# Reading several records at once uses threads; up to this number, one by one is faster.
_NUM_SINGLE_READS = 4


class TokenCache:
    """A cache on disk.

    Of a cache at an address, the descriptions are copied to this machine when it is opened, and
    each file of examples when it is first read, or by `fetch`.

    Attributes:
      path: directory or address of the cache.
      info: description of the cache.
    """

    def __init__(self, cache_dir: str | AnyPath, mixture: str = "MIXTURE"):
        """Opens a cache; messages name `mixture`. Raises UserError if there is no cache."""
        with as_user_errors("data.cache_dir"):
            self.path = as_path(cache_dir)
            if isinstance(self.path, StorePath):
                self.path.check_listable()
            try:
                self._local = local_copy(self.path, only=is_description)
                there = self.has("cache.json")
            except FileNotFoundError:
                there = False
            if not there:
                problem = "has no token cache" if self.path.is_dir() else "does not exist"
                raise UserError(
                    f"data.cache_dir: {cache_dir} {problem}; to write a token cache there, run "
                    f"python -m mtf.cache '{mixture}' --output {cache_dir}"
                )
        self.info = read_json(self._local / "cache.json", CacheInfo)
        self._wanted = mixture

    def has(self, file: str) -> bool:
        """Returns whether there is a description, or a directory with descriptions."""
        return (self._local / file).exists()

    def fetch(self, files: Collection[str]) -> None:
        """Copies files of a cache at an address to this machine, with a progress bar.

        Raises UserError if one is missing.
        """
        if isinstance(self.path, Path):
            return
        copied(self.path, "data.cache_dir", files.__contains__)
        for file in sorted(files):
            if not self.has(file):
                raise _damaged(self.path / file, "is missing", self._wanted)

    @property
    def where(self) -> str:
        """The cache, for messages."""
        return f"the cache {self.path}"

    def mixture(self, name: str) -> MixtureInfo:
        """Returns a mixture, or a task as a mixture; raises UserError if the cache has neither."""
        if (mixture := self.find_mixture(name)) is not None:
            return mixture
        if (task := self.find(name)) is not None:
            return MixtureInfo(name, "", task.fingerprint, {name: None})
        mixtures, tasks = self.names()
        raise UserError(
            f"{self.where} has no mixture {name!r}; it has {', '.join(mixtures) or 'none'}."
            f"{did_you_mean(name, [*mixtures, *tasks])} To add it, run {self.command(name)}"
        )

    def find_mixture(self, name: str) -> MixtureInfo | None:
        """Returns a mixture, or None."""
        path = mixture_path(self._local, name)
        return read_json(path, MixtureInfo) if path.is_file() else None

    def names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the mixtures and of the tasks in the cache."""
        tasks = [file.parent.name for file in self._local.glob("*/info.json")]
        return sorted(path.stem for path in (self._local / "mixtures").glob("*.json")), tasks

    def task(self, name: str) -> TaskInfo:
        """Returns the description of a task; raises UserError if it is missing or incomplete."""
        if (task := self.find(name)) is None:
            raise UserError(f"{self.where} has no task {name}. To add it, run {self.command(name)}")
        return task

    def split(self, task: TaskInfo, split: str) -> SplitReader:
        """Opens a split of a task; raises UserError if a file is missing or has another size."""
        info = task.splits[split]
        for shard in info.shards:
            if not isinstance(self.path, Path):
                break  # Files in a store are checked when they are copied.
            path = self.path / task.name / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.num_bytes:
                found = f"has {size} bytes; expected {shard.num_bytes} bytes"
                raise _damaged(path, "is missing" if size is None else found, self._wanted)
        return SplitReader(self.path / task.name, task, info, self._wanted)

    def find(self, name: str) -> TaskInfo | None:
        """Returns the description of a task, or None; raises UserError if it is incomplete."""
        if self.has(f"{name}/info.json"):
            return read_json(self._local / name / "info.json", TaskInfo)
        if self.has(name + INCOMPLETE):
            raise UserError(
                f"the task {name} in the cache {self.path} is incomplete because writing it was "
                f"interrupted. To finish it, run {self.command(self._wanted)}"
            )
        return None

    def unfinished(self) -> list[str]:
        """Returns the names of the folders of incomplete tasks."""
        return sorted(path.name for path in self._local.glob(f"*{INCOMPLETE}"))

    def command(self, name: str) -> str:
        """Returns the command that writes a mixture into this cache."""
        return f"python -m mtf.cache '{name}' --output {self.path}"


class JoinedCaches(TokenCache):
    """Several caches of one vocabulary; each task is taken from the first that has it.

    `path` and `info` are those of the first cache.
    """

    def __init__(self, caches: Sequence[TokenCache]):
        self.path, self.info = caches[0].path, caches[0].info
        self._caches = caches

    @property
    def where(self) -> str:
        """The caches, for messages."""
        return f"data.cache_dir ({', '.join(str(cache.path) for cache in self._caches)})"

    def find_mixture(self, name: str) -> MixtureInfo | None:
        """Returns a mixture with the tasks of all caches, in the mixture's order; or None.

        Raises UserError if its definitions in the caches differ.
        """
        found = [(c, info) for c in self._caches if (info := c.find_mixture(name)) is not None]
        if not found:
            return None
        first = found[0][1]
        for cache, info in found[1:]:
            if info.fingerprint != first.fingerprint:
                raise UserError(
                    f"data.cache_dir: the mixture {name} has different definitions or templates in "
                    f"{cache.path} and {found[0][0].path} (fingerprints {info.fingerprint} and "
                    f"{first.fingerprint}); write one of them again with the other's --templates "
                    "and --module"
                )
        rates: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for _, info in found:
            rates |= {t: r for t, r in (info.rates or info.tasks).items() if t not in rates}
            absent |= {t: reason for t, reason in info.absent.items() if t not in absent}
        tasks = {task: rate for task, rate in rates.items() if self._has(task)}
        absent = {task: absent.get(task, "no cache has it") for task in {**rates, **absent}}
        absent = {task: reason for task, reason in absent.items() if task not in tasks}
        return replace(first, tasks=tasks, absent=absent, rates=rates)

    def names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the mixtures and of the tasks in the caches."""
        mixtures, tasks = zip(*(cache.names() for cache in self._caches), strict=True)
        return sorted(set().union(*mixtures)), list(itertools.chain.from_iterable(tasks))

    def split(self, task: TaskInfo, split: str) -> SplitReader:
        """Opens a split of a task; raises UserError if a file is missing or has another size."""
        return self._cache_of(task.name).split(task, split)

    def find(self, name: str) -> TaskInfo | None:
        """Returns the description of a task, or None; raises UserError if it is incomplete."""
        return self._cache_of(name).find(name)

    def fetch(self, files: Collection[str]) -> None:
        """Copies files of caches at addresses to this machine, with a progress bar."""
        for cache in self._caches:
            cache.fetch({each for each in files if self._cache_of(each.split("/")[0]) is cache})

    def command(self, name: str) -> str:
        """Returns the command that writes a mixture into the first cache."""
        return self._caches[0].command(name)

    def _has(self, name: str) -> bool:
        return any(cache.has(f"{name}/info.json") for cache in self._caches)

    def _cache_of(self, name: str) -> TokenCache:
        """Returns the first cache that has a task, or has a part of it, or the first."""
        for file in (f"{name}/info.json", name + INCOMPLETE):
            for cache in self._caches:
                if cache.has(file):
                    return cache
        return self._caches[0]


class SplitReader:
    """The examples of a split of a task, by index."""

    def __init__(self, folder: AnyPath, task: TaskInfo, split: SplitInfo, mixture: str):
        """Messages name `mixture`."""
        self._codec = RecordCodec(task.features)
        shards = [shard for shard in split.shards if shard.num_examples]
        self._shards = [_Shard(folder / shard.file, shard, mixture) for shard in shards]
        self._ends = list(itertools.accumulate(shard.num_examples for shard in shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def examples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Returns examples with all features; raises UserError if a file is damaged."""
        return self._read(numbers, self._codec.decode)

    def pairs(self, numbers: Sequence[int]) -> list[tuple[Any, Any]]:
        """Returns (inputs, targets) of examples, without EOS, as `examples` does."""
        return self._read(numbers, self._codec.decode_pair)

    def _read(self, numbers: Sequence[int], decode: Callable[[bytes], Any]) -> list[Any]:
        if len(self._shards) == 1:
            return self._shards[0].read(numbers, decode)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(bisect.bisect_right(self._ends, number), []).append(place)
        found: list[Any] = [None] * len(numbers)
        for shard, shard_places in places.items():
            start = self._ends[shard - 1] if shard else 0
            examples = self._shards[shard].read([numbers[p] - start for p in shard_places], decode)
            for place, example in zip(shard_places, examples, strict=True):
                found[place] = example
        return found


class _Shard:
    """A file, which is opened at the first read."""

    def __init__(self, path: AnyPath, info: ShardInfo, mixture: str):
        self._path = path
        self._mixture = mixture
        self._info = info

    def read(self, numbers: Sequence[int], decode: Callable[[bytes], Any]) -> list[Any]:
        try:
            reader = self._reader
            if len(numbers) > _NUM_SINGLE_READS:
                return [decode(record) for record in reader.read(numbers)]
            return [decode(reader.read((number,))[0]) for number in numbers]
        except UserError:
            raise
        # ArrayRecord fails on damaged blocks, the codec on records of another length.
        except Exception as error:
            raise _damaged(self._path, f"cannot be read: {error}", self._mixture) from error

    @functools.cached_property
    def _reader(self) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(
            str(shard_file(self._path, self._info)),
            _READER_OPTIONS,
            file_reader_buffer_size=_READER_BUFFER_BYTES,
        )
        if reader.num_records() != self._info.num_examples:
            found = f"has {reader.num_records()} records; expected {self._info.num_examples}"
            raise _damaged(self._path, found, self._mixture)
        return reader


def is_description(name: str) -> bool:
    """Returns whether a file of a cache describes what is in it."""
    return name.endswith(".json") and not is_record(name)


def shard_file(path: AnyPath, shard: ShardInfo) -> Path:
    """Returns a file of examples on this machine; of an address, the copy."""
    found = nearest_copy(path)
    if isinstance(found, Path) and found.stat().st_size == shard.num_bytes:
        return found
    return copied(path, "data.cache_dir")


def _damaged(path: AnyPath, problem: str, mixture: str) -> UserError:
    folder = path.parent
    return UserError(
        f"{path} {problem}. The cache is damaged. Delete {folder}, then write this task again with "
        f"python -m mtf.cache '{mixture}' --output {folder.parent} --only {folder.name}"
    )


def check_files(cache_dir: AnyPath, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Reads all files of tasks; yields the name and the problems of each task."""
    cache = TokenCache(cache_dir)
    for name in names:
        problems = []
        try:
            task = cache.task(name)
        except UserError as error:
            yield name, [str(error)]
            continue
        for split, info in task.splits.items():
            for shard in info.shards:
                path = cache_dir / name / shard.file
                if not path.is_file():
                    problems.append(f"{path} is missing")
                elif file_crc32(copied(path, "--output")) != shard.crc32:
                    problems.append(f"{path} is damaged: its checksum does not match")
            if not problems and cache.info.format == "array_record":
                try:
                    reader = cache.split(task, split)
                    for start in range(0, len(reader), 1000):
                        reader.examples(range(start, min(start + 1000, len(reader))))
                except UserError as error:
                    problems.append(str(error))
        yield name, problems
