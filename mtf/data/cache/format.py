"""Defines the layout of a token cache on disk.

    DIR/cache.json                                  the cache (`CacheInfo`)
    DIR/TASK/info.json                              a task (`TaskInfo`)
    DIR/TASK/SPLIT-00000-of-00004.array_record      its examples (`RecordCodec`)
    DIR/mixtures/NAME.json                          tasks and rates of a mixture (`MixtureInfo`)

A task is written to DIR/TASK.incomplete, which is renamed when the task is complete. In a store,
where directories cannot be renamed, the files of examples are uploaded to DIR/TASK first, and
info.json last. Features are stored untruncated and without EOS; readers truncate them and add EOS.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from mtf.base import strict_json
from mtf.base.errors import UserError
from mtf.base.writing import write_atomically
from mtf.data.tasks.task import TaskKind

FORMAT_VERSION = 1
INCOMPLETE = ".incomplete"

# The time to read a record grows with both the number and the size of the groups in a file. A
# size of 32 is nearly optimal for 10^3 to 10^6 records of a few hundred bytes. Compression would
# save little space.
_WRITER_OPTIONS = "group_size:32,uncompressed"
_RANK_FEATURES = {"idx": "int32", "is_correct": "uint8", "weight": "float32"}
# Histograms count lengths exactly up to 2048; longer lengths are rounded up to a multiple of 256.
_MAX_EXACT_LENGTH = 2048
_LENGTH_STEP = 256


def feature_dtypes(kind: TaskKind, vocab_size: int) -> dict[str, str]:
    """Returns a dict that maps each feature of a task to its NumPy type, in the order on disk."""
    ids = "uint16" if vocab_size <= 1 << 16 else "int32"
    if kind == "documents":
        return {"targets": ids}
    return {"inputs": ids, "targets": ids} | (_RANK_FEATURES if kind == "rank" else {})


class RecordCodec:
    """Converts examples to bytes and back.

    A record consists of the lengths of all features except the last, as uint32, followed by the
    values of all features. All numbers are little-endian.
    """

    def __init__(self, features: Mapping[str, str]):
        """Initializes the codec from a dict that maps features to types, in the order on disk."""
        self._names = tuple(features)
        self._dtypes = tuple(np.dtype(dtype).newbyteorder("<") for dtype in features.values())
        self._header = struct.Struct(f"<{len(features) - 1}I")

    def encode(self, example: Mapping[str, np.ndarray]) -> bytes:
        """Serializes an example whose features are one-dimensional arrays."""
        values = [
            np.asarray(example[name], dtype)
            for name, dtype in zip(self._names, self._dtypes, strict=True)
        ]
        header = self._header.pack(*map(len, values[:-1]))
        return b"".join((header, *(value.tobytes() for value in values)))

    def decode(self, record: bytes) -> dict[str, np.ndarray]:
        """Deserializes an example; its arrays are read-only."""
        lengths = self._header.unpack_from(record)
        offset = self._header.size
        example = {}
        for name, dtype, length in zip(self._names, self._dtypes, (*lengths, -1), strict=True):
            example[name] = np.frombuffer(record, dtype, length, offset)
            offset += length * dtype.itemsize
        return example


class ShardWriter(Protocol):
    """Writes the examples of one shard."""

    def write(self, example: Mapping[str, Any]) -> None:
        """Appends an example of token ids without EOS and, if kept, texts (see `keeps_text`)."""

    def close(self) -> None:
        """Finishes the file."""


class ArrayRecordFormat:
    """A format that stores records in ArrayRecord files. Subclasses define other formats.

    Attributes:
      name: "array_record" or "seqio".
      keeps_text: whether examples include their texts, as `FEATURE_pretokenized`.
    """

    name: Literal["array_record", "seqio"] = "array_record"
    keeps_text = False

    def shard_name(self, split: str, shard: int, num_shards: int) -> str:
        """Returns the name of a shard's file in the task's folder."""
        return f"{split}-{shard:05d}-of-{num_shards:05d}.array_record"

    def open(self, path: Path, task: TaskInfo, eos_id: int) -> ShardWriter:
        """Returns a writer for `path`; `task` has no splits yet."""
        return _ArrayRecordWriter(path, RecordCodec(task.features))

    def finish(self, folder: Path, task: TaskInfo) -> None:
        """Writes any other files that the format needs, after all shards of a task are written."""


class _ArrayRecordWriter:
    def __init__(self, path: Path, codec: RecordCodec):
        # This import is local, because reading descriptions does not need the package.
        from array_record.python.array_record_module import ArrayRecordWriter

        self._writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        self._codec = codec
        self.close = self._writer.close

    def write(self, example: Mapping[str, Any]) -> None:
        self._writer.write(self._codec.encode(example))


@dataclass(frozen=True)
class ShardInfo:
    """A file of examples; `file` is its name in the task's folder."""

    file: str
    num_examples: int
    num_bytes: int
    crc32: int


@dataclass
class SplitInfo:
    """The content of a split of a task.

    Attributes:
      num_rows: number of records read from the dataset.
      num_dropped: number of records that yielded no example.
      num_examples: number of examples written.
      num_tokens: total number of tokens, without EOS, for each feature.
      max_tokens: number of tokens in the longest example for each feature.
      lengths: for each feature, a histogram that maps numbers of tokens (rounded up above 2048) to
        numbers of examples.
      shards: files of the split.
    """

    num_rows: int = 0
    num_dropped: int = 0
    num_examples: int = 0
    num_tokens: dict[str, int] = field(default_factory=dict)
    max_tokens: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, dict[str, int]] = field(default_factory=dict)
    shards: list[ShardInfo] = field(default_factory=list)

    def count(self, examples: Sequence[Mapping[str, Any]]) -> None:
        """Counts a record and the tokenized examples that were made from it."""
        self.num_rows += 1
        self.num_dropped += not examples
        self.num_examples += len(examples)
        for example in examples:
            for name in [name for name in ("inputs", "targets") if name in example]:
                length = rounded = len(example[name])
                if length > _MAX_EXACT_LENGTH:
                    rounded = -(-length // _LENGTH_STEP) * _LENGTH_STEP
                self._count_tokens(name, length, length, {str(rounded): 1})

    def add(self, other: SplitInfo) -> None:
        """Adds the counts and the files of another part of the split."""
        self.num_rows += other.num_rows
        self.num_dropped += other.num_dropped
        self.num_examples += other.num_examples
        for name, number in other.num_tokens.items():
            self._count_tokens(name, number, other.max_tokens[name], other.lengths[name])
        self.shards += other.shards

    def _count_tokens(self, name: str, number: int, longest: int, lengths: dict[str, int]) -> None:
        self.num_tokens[name] = self.num_tokens.get(name, 0) + number
        self.max_tokens[name] = max(self.max_tokens.get(name, 0), longest)
        mine = self.lengths.setdefault(name, {})
        for key, count in lengths.items():
            mine[key] = mine.get(key, 0) + count

    def num_longer(self, name: str, length: int) -> int:
        """Returns the number of examples in which feature `name` has more than `length` tokens."""
        return sum(n for key, n in self.lengths.get(name, {}).items() if int(key) > length)


@dataclass(frozen=True)
class TaskInfo:
    """The description of a task.

    Attributes:
      name, kind, inputs_add_eos, targets_add_eos, metrics: see `Task`.
      fingerprint: hash of everything that determines the text of the examples.
      features: dict that maps each feature to its NumPy type, in the order on disk.
      objective: fields of the objective, and its class as "type"; None unless kind is "documents".
      source: source of the examples, such as `piqa` or a SeqIO cache.
      max_rows: maximum number of records read from a split; None for no limit.
      splits: dict that maps the name of each split to its description.
    """

    name: str
    kind: TaskKind
    fingerprint: str
    features: dict[str, str]
    inputs_add_eos: bool
    targets_add_eos: bool
    metrics: list[str] = field(default_factory=list)
    objective: dict[str, Any] | None = None
    source: str = ""
    max_rows: int | None = None
    splits: dict[str, SplitInfo] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class CacheInfo:
    """The description of a cache.

    Attributes:
      format: format of the shards.
      vocabulary: fingerprint of the vocabulary.
      vocabulary_path: path of the vocabulary when the cache was written, shown in messages.
      vocab_size: number of ids in the vocabulary.
      seed: seed for the templates' random choices.
    """

    format: Literal["array_record", "seqio"]
    vocabulary: str
    vocabulary_path: str
    vocab_size: int
    seed: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class MixtureInfo:
    """The description of a mixture in a cache.

    Attributes:
      name, vocabulary, fingerprint: see `Mixture`.
      tasks: dict that maps the name of each task in the cache to its rate, in the mixture's order.
      absent: dict that maps the name of each task that is not in the cache to the reason.
      rates: dict that maps the names of all tasks, including absent ones, to their rates, in the
        mixture's order; empty if no task is absent.
    """

    name: str
    vocabulary: str
    fingerprint: str
    tasks: dict[str, float | None]
    absent: dict[str, str] = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


Info = TypeVar("Info", TaskInfo, CacheInfo, MixtureInfo, SplitInfo)


def write_json(path: Path, info: Info) -> None:
    """Writes a description (`info`) to `path` as JSON, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(info), indent=1))


def read_json(path: Path, cls: type[Info]) -> Info:
    """Reads a description; raises UserError if the file is damaged or has another version."""
    try:
        values = strict_json.read_object(path)
        version = values.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} has version {version} of the cache format, but this version of mtf reads "
                f"version {FORMAT_VERSION}. Write the cache again to another directory"
            )
        if cls is TaskInfo:
            values["splits"] = {k: _split_info(v) for k, v in values["splits"].items()}
        return _split_info(values) if cls is SplitInfo else cls(**values)  # type: ignore[return-value]
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged; expected a JSON file of a token cache ({type(error).__name__}: "
            f"{error}). Write the cache again to another directory"
        ) from error


def _split_info(values: dict[str, Any]) -> SplitInfo:
    return SplitInfo(**{**values, "shards": [ShardInfo(**shard) for shard in values["shards"]]})


def file_crc32(path: Path) -> int:
    """Returns the CRC-32 of a file's content."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def mixture_path(cache_dir: Path, name: str) -> Path:
    """Returns the path of a mixture's description."""
    return cache_dir / "mixtures" / f"{name}.json"
