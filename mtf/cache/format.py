"""What a token cache looks like on disk.

    DIR/cache.json                                  what all of it has in common (`CacheInfo`)
    DIR/TASK/info.json                              what the task holds (`TaskInfo`)
    DIR/TASK/SPLIT-00000-of-00004.array_record      its examples (`RecordCodec`)
    DIR/mixtures/NAME.json                          tasks and rates of a mixture (`MixtureInfo`)

A task is written as DIR/TASK.incomplete and renamed when all of it is there. Tokens are stored
without end of sequence and as long as they are: both are decided when they are read.
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

from mtf.errors import UserError
from mtf.tasks.task import TaskKind
from mtf.writing import write_atomically

FORMAT_VERSION = 1
INCOMPLETE = ".incomplete"

# A read of a record costs time in proportion to the number of groups in its file, and to the size
# of its group: for records of some hundred bytes 32 is near the best from 10^3 to 10^6 of them.
# Tokens do not compress well enough to pay for it at every read.
_WRITER_OPTIONS = "group_size:32,uncompressed"
_RANK_FEATURES = {"idx": "int32", "is_correct": "uint8", "weight": "float32"}
# Lengths are counted one by one up to here, and then rounded up to a multiple of the step.
_MAX_EXACT_LENGTH = 2048
_LENGTH_STEP = 256


def feature_dtypes(kind: TaskKind, vocab_size: int) -> dict[str, str]:
    """Returns the features of a task's examples and their types, in the order of a record."""
    ids = "uint16" if vocab_size <= 1 << 16 else "int32"
    if kind == "documents":
        return {"targets": ids}
    return {"inputs": ids, "targets": ids} | (_RANK_FEATURES if kind == "rank" else {})


def _rounded_length(length: int) -> int:
    """Returns the length under which `length` tokens are counted in `SplitInfo.lengths`."""
    if length <= _MAX_EXACT_LENGTH:
        return length
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


class RecordCodec:
    """Examples to bytes and back: the lengths of all features but the last, then their values.

    Lengths are uint32; everything is little-endian.
    """

    def __init__(self, features: Mapping[str, str]):
        """`features` are names and numpy types, in their order."""
        self._names = tuple(features)
        self._dtypes = tuple(np.dtype(dtype).newbyteorder("<") for dtype in features.values())
        self._header = struct.Struct(f"<{len(features) - 1}I")

    def encode(self, example: Mapping[str, np.ndarray]) -> bytes:
        """Returns the record of an example, whose values are of one dimension."""
        values = [
            np.asarray(example[name], dtype)
            for name, dtype in zip(self._names, self._dtypes, strict=True)
        ]
        header = self._header.pack(*map(len, values[:-1]))
        return b"".join((header, *(value.tobytes() for value in values)))

    def decode(self, record: bytes) -> dict[str, np.ndarray]:
        """Returns the example of a record, read-only."""
        lengths = self._header.unpack_from(record)
        offset = self._header.size
        example = {}
        for name, dtype, length in zip(self._names, self._dtypes, (*lengths, -1), strict=True):
            example[name] = np.frombuffer(record, dtype, length, offset)
            offset += length * dtype.itemsize
        return example

    def decode_pair(self, record: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and targets, the first two features. Faster if there are no others."""
        if len(self._dtypes) > 2:
            example = self.decode(record)
            return example["inputs"], example["targets"]
        inputs_dtype, targets_dtype = self._dtypes
        (num_inputs,) = self._header.unpack_from(record)
        start = self._header.size
        inputs = np.frombuffer(record, inputs_dtype, num_inputs, start)
        end = start + num_inputs * inputs_dtype.itemsize
        return inputs, np.frombuffer(record, targets_dtype, -1, end)


class ShardWriter(Protocol):
    """Writes the examples of one shard."""

    def write(self, example: Mapping[str, Any]) -> None:
        """Appends an example: token ids without end of sequence, and `FEATURE_pretokenized`."""

    def close(self) -> None:
        """Finishes the file."""


class ShardFormat(Protocol):
    """How the shards of a task are written: as ArrayRecord or as SeqIO's TFRecords.

    Attributes:
      name: "array_record" or "seqio".
      keeps_text: whether examples have their text too, as `FEATURE_pretokenized`.
    """

    name: Literal["array_record", "seqio"]
    keeps_text: bool

    def shard_name(self, split: str, shard: int, num_shards: int) -> str:
        """Returns the name of a file in the task's folder."""

    def open(self, path: Path, task: TaskInfo, eos_id: int) -> ShardWriter:
        """Returns a writer of the file at `path`; `task` has no splits yet."""

    def finish(self, folder: Path, task: TaskInfo) -> None:
        """Writes what the format has beside the shards of a task, all of which are in `folder`."""


class ArrayRecordFormat:
    """ArrayRecord files of our own records."""

    name: Literal["array_record", "seqio"] = "array_record"
    keeps_text = False

    def shard_name(self, split: str, shard: int, num_shards: int) -> str:
        """Returns `SPLIT-00000-of-00004.array_record`."""
        return f"{split}-{shard:05d}-of-{num_shards:05d}.array_record"

    def open(self, path: Path, task: TaskInfo, eos_id: int) -> ShardWriter:
        """Returns a writer of one file."""
        return _ArrayRecordWriter(path, RecordCodec(task.features))

    def finish(self, folder: Path, task: TaskInfo) -> None:
        """There is nothing beside the shards."""


class _ArrayRecordWriter:
    def __init__(self, path: Path, codec: RecordCodec):
        # Not at the top: reading a cache's descriptions must not need it.
        from array_record.python.array_record_module import ArrayRecordWriter

        self._writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        self._codec = codec
        self.close = self._writer.close

    def write(self, example: Mapping[str, Any]) -> None:
        self._writer.write(self._codec.encode(example))


@dataclass(frozen=True)
class ShardInfo:
    """A file of examples: its name in the task's folder, its records, size and checksum."""

    file: str
    num_examples: int
    num_bytes: int
    crc32: int


@dataclass
class SplitInfo:
    """What a split of a task holds.

    Attributes:
      num_rows: rows of the dataset that were read.
      num_dropped: rows of which the task makes no example.
      num_examples: examples written.
      num_tokens: feature → all its tokens, without ends of sequence.
      max_tokens: feature → tokens of its longest example.
      lengths: feature → number of tokens (above 2048 rounded up) → number of examples.
      shards: its files.
    """

    num_rows: int = 0
    num_dropped: int = 0
    num_examples: int = 0
    num_tokens: dict[str, int] = field(default_factory=dict)
    max_tokens: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, dict[str, int]] = field(default_factory=dict)
    shards: list[ShardInfo] = field(default_factory=list)

    def count(self, example: Mapping[str, Sequence[int] | np.ndarray]) -> None:
        """Counts an example of token ids."""
        self.num_examples += 1
        for name, ids in example.items():
            length = len(ids)
            self._count_tokens(name, length, length, {str(_rounded_length(length)): 1})

    def add(self, other: SplitInfo) -> None:
        """Adds what another part of the same split holds."""
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
        """Returns how many examples have more than `length` tokens of a feature."""
        return sum(n for key, n in self.lengths.get(name, {}).items() if int(key) > length)


@dataclass(frozen=True)
class TaskInfo:
    """What a task's folder holds.

    Attributes:
      name: of the task.
      kind: of its examples: inputs and targets; those and what ranks them; or documents.
      fingerprint: hash of what decides the text of its examples.
      features: names and types of a record's values, in their order.
      inputs_add_eos, targets_add_eos: whether the reader adds end of sequence.
      metrics: names of the task's metrics.
      objective: makes examples of documents: {"type": …, and its fields}; None: there is none.
      source: where its examples come from, such as `piqa` or a SeqIO cache.
      max_rows: the most rows read of a split; None: all.
      splits: by their names.
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
    """What everything in a cache has in common.

    Attributes:
      format: of its shards.
      vocabulary: the vocabulary's fingerprint.
      vocabulary_path: where the vocabulary was, for messages.
      vocab_size: number of its ids.
      seed: of the templates' random choices.
    """

    format: Literal["array_record", "seqio"]
    vocabulary: str
    vocabulary_path: str
    vocab_size: int
    seed: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class MixtureInfo:
    """A mixture in a cache.

    Attributes:
      name: as it was asked for.
      vocabulary: the model that it is made for, such as "t5".
      fingerprint: of the templates of its tasks.
      tasks: names and rates of the tasks that are in the cache, in the mixture's order.
      absent: names of the mixture's other tasks, each with the reason why it is not there.
    """

    name: str
    vocabulary: str
    fingerprint: str
    tasks: dict[str, int | None]
    absent: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


Info = TypeVar("Info", TaskInfo, CacheInfo, MixtureInfo, SplitInfo)


def write_json(path: Path, info: TaskInfo | CacheInfo | MixtureInfo | SplitInfo) -> None:
    """Writes a description; the file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(info), indent=1))


def read_json(path: Path, cls: type[Info]) -> Info:
    """Reads what `write_json` has written; raises UserError if it is something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} is of version {version} of the cache's format; this version of mtf reads "
                f"version {FORMAT_VERSION}: write the cache again, into another directory"
            )
        if cls is TaskInfo:
            values["splits"] = {k: _split_info(v) for k, v in values["splits"].items()}
        return _split_info(values) if cls is SplitInfo else cls(**values)  # type: ignore[return-value]
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a description of a token cache: {error}") from error


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
    """Returns where the description of a mixture is."""
    return cache_dir / "mixtures" / f"{name}.json"
