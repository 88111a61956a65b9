"""Reading a cache: tasks by name, examples by number.

This uses ArrayRecord's own reader, not Grain's data source over it, which starts a pool of threads
at every read; that takes longer than reading some records.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
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
from mtf.errors import UserError, did_you_mean

# No read-ahead and no threads, because records are read at random.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 1 << 15
# Reading several records at once goes through threads; up to this many, one by one is faster.
_NUM_SINGLE_READS = 4


class TokenCache:
    """A cache on disk.

    Attributes:
      path: its directory.
      info: what all of it has in common.
    """

    def __init__(self, cache_dir: str | Path, mixture: str = "MIXTURE"):
        """Opens a cache for a mixture, which messages name; raises UserError if there is none."""
        self.path = Path(cache_dir).expanduser()
        if not (self.path / "cache.json").is_file():
            there = "has no token cache" if self.path.is_dir() else "does not exist"
            raise UserError(
                f"data.cache_dir: {cache_dir} {there}; "
                f"make one: python -m mtf.cache '{mixture}' --output {cache_dir}"
            )
        self.info = read_json(self.path / "cache.json", CacheInfo)
        self._wanted = mixture

    def mixture(self, name: str) -> MixtureInfo:
        """Returns a mixture, or a task as a mixture; raises UserError if the cache has neither."""
        path = mixture_path(self.path, name)
        if path.is_file():
            return read_json(path, MixtureInfo)
        if (task := self._find(name)) is not None:
            return MixtureInfo(name, "", task.fingerprint, {name: None})
        tasks = [file.parent.name for file in self.path.glob("*/info.json")]
        known = sorted(path.stem for path in (self.path / "mixtures").glob("*.json"))
        raise UserError(
            f"the cache {self.path} has no mixture {name!r}, only {', '.join(known) or 'none'}."
            f"{did_you_mean(name, [*known, *tasks])} To add it: {self._command(name)}"
        )

    def task(self, name: str) -> TaskInfo:
        """Returns what a task holds; raises UserError if it is not there, or not complete."""
        if (task := self._find(name)) is None:
            raise UserError(f"the cache {self.path} has no task {name}")
        return task

    def split(self, task: TaskInfo, split: str) -> SplitReader:
        """Opens a split of a task; raises UserError if a file is missing or cut off."""
        info = task.splits[split]
        for shard in info.shards:
            path = self.path / task.name / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.num_bytes:
                found = "is missing" if size is None else f"has {size} bytes"
                raise damaged(path, f"{found}, not {shard.num_bytes}", self._wanted)
        return SplitReader(self.path / task.name, task, info, self._wanted)

    def check_format(self) -> None:
        """Raises UserError if the cache has SeqIO's layout, which cannot be read at random."""
        if self.info.format != "array_record":
            raise UserError(
                f"data.cache_dir: {self.path} is in SeqIO's form; set data.loader='seqio' and "
                "data.use_cached=True, or write it again without --format seqio"
            )

    def check_vocabulary(self, fingerprint: str, path: str) -> None:
        """Raises UserError if a vocabulary is not the one that the cache was made with."""
        if fingerprint != self.info.vocabulary:
            raise UserError(
                f"data.vocabulary: the cache {self.path} was made with {self.info.vocabulary} "
                f"({self.info.vocabulary_path}), and this is {fingerprint} ({path})"
            )

    def _find(self, name: str) -> TaskInfo | None:
        """Returns a task; None if it is not there; raises UserError if it is not complete."""
        if (self.path / name / "info.json").is_file():
            return read_json(self.path / name / "info.json", TaskInfo)
        if (self.path / (name + INCOMPLETE)).is_dir():
            raise UserError(
                f"the cache {self.path} has the task {name} only in part: its writing has been "
                f"interrupted. To finish it: {self._command(self._wanted)}"
            )
        return None

    def _command(self, name: str) -> str:
        return f"python -m mtf.cache '{name}' --output {self.path}"


class SplitReader:
    """The examples of a split of a task, by number."""

    def __init__(self, folder: Path, task: TaskInfo, split: SplitInfo, mixture: str):
        """Messages name `mixture` as what the split is wanted for."""
        self._codec = RecordCodec(task.features)
        shards = [shard for shard in split.shards if shard.num_examples]
        self._shards = [_Shard(folder / shard.file, shard, mixture) for shard in shards]
        self._ends = list(itertools.accumulate(shard.num_examples for shard in shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def examples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Returns some examples, with all their features; raises UserError if a file is damaged."""
        return self._read(numbers, self._codec.decode)

    def pairs(self, numbers: Sequence[int]) -> list[tuple[Any, Any]]:
        """Returns (inputs, targets) of some examples, likewise; without end of sequence."""
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
    """A file, opened when it is read from."""

    def __init__(self, path: Path, info: ShardInfo, mixture: str):
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
        # ArrayRecord fails on bytes that are not its own, the codec on records of another length.
        except Exception as error:
            raise damaged(self._path, f"cannot be read: {error}", self._mixture) from error

    @functools.cached_property
    def _reader(self) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(
            str(self._path), _READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER_BYTES
        )
        if reader.num_records() != self._info.num_examples:
            found = f"has {reader.num_records()} records, not {self._info.num_examples}"
            raise damaged(self._path, found, self._mixture)
        return reader


def damaged(path: Path, problem: str, mixture: str) -> UserError:
    """Returns the error for a file that is not as it was written."""
    folder = path.parent
    return UserError(
        f"{path} {problem}. The file is damaged: delete {folder} and write that task again: "
        f"python -m mtf.cache '{mixture}' --output {folder.parent} --only {folder.name}"
    )


def check_files(cache_dir: Path, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Reads tasks from end to end; yields each one's name and what is wrong with it.

    Compares sizes, checksums and numbers of records with those that were written.
    """
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
                elif file_crc32(path) != shard.crc32:
                    problems.append(f"{path} is not as it was written: its checksum differs")
            if not problems and cache.info.format == "array_record":
                try:
                    reader = cache.split(task, split)
                    for start in range(0, len(reader), 1000):
                        reader.examples(range(start, min(start + 1000, len(reader))))
                except UserError as error:
                    problems.append(str(error))
        yield name, problems
