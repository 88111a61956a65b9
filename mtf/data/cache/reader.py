"""Reads the tasks in a cache by name, and their examples by index.

Files are read with ArrayRecord's reader rather than Grain's data source, because the latter starts
a thread pool for every read, which takes longer than reading a few records.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mtf.base.downloads import as_user_errors, copied
from mtf.base.errors import UserError, did_you_mean
from mtf.data.cache.format import (
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
from mtf.data.cache.recording import is_record
from mtf.storage import AnyPath, as_path, is_listable, is_remote
from mtf.storage.copies import local_copy, nearest_copy

# Read-ahead and threads are disabled, because records are read in random order.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 1 << 15
# Up to this number, reading records one by one is faster than reading them together in threads.
_NUM_SINGLE_READS = 4


class TokenCache:
    """A cache on disk or in a store.

    If the cache is in a store, its descriptions are copied to this machine when the cache is
    opened. Each file of examples is copied when it is first read, or by `fetch`.

    Attributes:
      path: directory or remote path of the cache.
      info: description of the cache.
    """

    def __init__(
        self, cache_dir: str | AnyPath, mixture: str = "MIXTURE", options: str | None = None
    ):
        """Opens a cache; raises UserError if there is none.

        Error messages name `mixture` and the `options` with which `mtf.cache` writes the cache, by
        default --output.
        """
        with as_user_errors("data.cache_dir"):
            self.path = as_path(cache_dir)
            self._options = f" --output {self.path}" if options is None else options
            if not is_listable(self.path):
                raise UserError(
                    f"data.cache_dir: {self.path} cannot be listed; copy the cache to this machine"
                )
            try:
                self._local = local_copy(self.path, only=is_description)
                there = self.has("cache.json")
            except FileNotFoundError:
                there = False
            if not there:
                problem = "has no token cache" if self.path.is_dir() else "does not exist"
                raise UserError(
                    f"data.cache_dir: {cache_dir} {problem}; to write a token cache there, run "
                    f"{self.command(mixture)}"
                )
        self.info = read_json(self._local / "cache.json", CacheInfo)
        self._wanted = mixture

    def has(self, file: str) -> bool:
        """Returns whether the cache contains a given description or directory of descriptions."""
        return (self._local / file).exists()

    def fetch(self, files: Collection[str]) -> None:
        """Copies files from a store to this machine; raises UserError if one is missing."""
        if not is_remote(self.path):
            return
        copied(self.path, "data.cache_dir", files.__contains__)
        for file in sorted(files):
            if not self.has(file):
                raise _damaged(self.path / file, "is missing", self._wanted)

    @property
    def where(self) -> str:
        """The name that messages use for the cache."""
        return f"the cache {self.path}"

    def mixture(self, name: str) -> MixtureInfo:
        """Returns the mixture or task `name` as a mixture; raises UserError if neither exists."""
        path = mixture_path(self._local, name)
        if path.is_file():
            return read_json(path, MixtureInfo)
        if (task := self.find(name)) is not None:
            return MixtureInfo(name, "", task.fingerprint, {name: None})
        mixtures = sorted(path.stem for path in path.parent.glob("*.json"))
        tasks = [file.parent.name for file in self._local.glob("*/info.json")]
        raise UserError(
            f"{self.where} has no mixture {name!r}; it has {', '.join(mixtures) or 'none'}."
            f"{did_you_mean(name, [*mixtures, *tasks])} To add it, run {self.command(name)}"
        )

    def task(self, name: str) -> TaskInfo:
        """Returns the description of a task; raises UserError if it is missing or incomplete."""
        if (task := self.find(name)) is None:
            raise UserError(f"{self.where} has no task {name}. To add it, run {self.command(name)}")
        return task

    def split(self, task: TaskInfo, split: str) -> SplitReader:
        """Opens a split of a task; raises UserError if a file is missing or has the wrong size."""
        info = task.splits[split]
        for shard in info.shards:
            if is_remote(self.path):
                break  # Files in a store are checked when they are copied.
            path = self.path / task.name / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.num_bytes:
                found = f"has {size} bytes; expected {shard.num_bytes} bytes"
                raise _damaged(path, "is missing" if size is None else found, self._wanted)
        return SplitReader(self.path / task.name, task, info, self._wanted)

    def find(self, name: str) -> TaskInfo | None:
        """Returns a task's description (None if absent); raises UserError if it is incomplete."""
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
        return f"python -m mtf.cache '{name}'{self._options}"


class SplitReader:
    """Reads the examples of a task's split by index."""

    def __init__(self, folder: AnyPath, task: TaskInfo, split: SplitInfo, mixture: str):
        """Initializes the reader without opening files. Error messages name `mixture`."""
        self._folder, self._mixture = folder, mixture
        self._codec = RecordCodec(task.features)
        self._shards = [shard for shard in split.shards if shard.num_examples]
        self._ends = list(itertools.accumulate(shard.num_examples for shard in self._shards))
        self._readers: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def examples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the examples with the given indices; raises UserError if a file is damaged."""
        wanted: dict[int, list[int]] = {}
        for index, number in enumerate(numbers):
            wanted.setdefault(bisect.bisect_right(self._ends, number), []).append(index)
        found: list[Any] = [None] * len(numbers)
        for shard, indices in wanted.items():
            start = self._ends[shard - 1] if shard else 0
            examples = self._read(self._shards[shard], [numbers[i] - start for i in indices])
            for index, example in zip(indices, examples, strict=True):
                found[index] = example
        return found

    def _read(self, shard: ShardInfo, numbers: Sequence[int]) -> list[dict[str, Any]]:
        path, decode = self._folder / shard.file, self._codec.decode
        try:
            if shard.file not in self._readers:
                self._readers[shard.file] = _open(path, shard, self._mixture)
            reader = self._readers[shard.file]
            if len(numbers) > _NUM_SINGLE_READS:
                return [decode(record) for record in reader.read(numbers)]
            return [decode(reader.read((number,))[0]) for number in numbers]
        except UserError:
            raise
        # ArrayRecord fails on damaged blocks, and the codec fails on records of the wrong length.
        except Exception as error:
            raise _damaged(path, f"cannot be read: {error}", self._mixture) from error


def _open(path: AnyPath, shard: ShardInfo, mixture: str) -> Any:
    """Returns ArrayRecord's reader of a file."""
    from array_record.python.array_record_module import ArrayRecordReader

    file = nearest_copy(path)
    if is_remote(file) or file.stat().st_size != shard.num_bytes:
        file = copied(path, "data.cache_dir")
    reader = ArrayRecordReader(
        str(file), _READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER_BYTES
    )
    if reader.num_records() != shard.num_examples:
        found = f"has {reader.num_records()} records; expected {shard.num_examples}"
        raise _damaged(path, found, mixture)
    return reader


def is_description(name: str) -> bool:
    """Returns whether a file with this name describes the content of a cache."""
    return name.endswith(".json") and not is_record(name)


def _damaged(path: AnyPath, problem: str, mixture: str) -> UserError:
    folder = path.parent
    return UserError(
        f"{path} {problem}. The cache is damaged. Delete {folder}, then write this task again with "
        f"python -m mtf.cache '{mixture}' --output {folder.parent} --only {folder.name}"
    )


def check_files(cache_dir: AnyPath, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Reads all files of the named tasks; yields the name of each task and its problems."""
    cache = TokenCache(cache_dir)
    for name in names:
        problems = []
        try:
            task = cache.task(name)
        except UserError as error:
            yield name, [str(error)]
            continue
        for info in task.splits.values():
            for shard in info.shards:
                path = cache_dir / name / shard.file
                if not path.is_file():
                    problems.append(f"{path} is missing")
                elif file_crc32(copied(path, "--output")) != shard.crc32:
                    problems.append(f"{path} is damaged: its checksum does not match")
        yield name, problems
