"""Shards as SeqIO's own caches have them, which T5X and SeqIO read with `use_cached=True`.

    DIR/TASK/SPLIT.tfrecord-00000-of-00004   tf.train.Example records
    DIR/TASK/info.SPLIT.json                 number of files; shapes and types of the features
    DIR/TASK/stats.SPLIT.json                numbers of examples and tokens
    DIR/TASK/COMPLETED

Written without TensorFlow: a record is a frame with checksums around a protocol buffer of three
nested messages. Tokens end with end of sequence where the task has it, and the text is kept beside
them (`FEATURE_pretokenized`), as `seqio_cache_tasks` does.
"""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mtf.cache.format import ShardWriter, SplitInfo, TaskInfo
from mtf.seqio.tfrecord import masked_crc32c

# The version of SeqIO whose layout this is; it reads by the version that a cache names.
SEQIO_VERSION = "0.0.20"
COMPLETED = "COMPLETED"
_RECORDS_AT_ONCE = 512

_TEXT = {"shape": [], "dtype": "string"}
_TOKENS = {"shape": [None], "dtype": "int32"}
# What an example to be ranked has beside its tokens.
_RANK = {
    "idx": _TOKENS,
    "is_correct": {"shape": [], "dtype": "bool"},
    "weight": {"shape": [], "dtype": "float32"},
}


class SeqioFormat:
    """TFRecord files with what SeqIO wants beside them."""

    name: Literal["array_record", "seqio"] = "seqio"
    keeps_text = True

    def shard_name(self, split: str, shard: int, num_shards: int) -> str:
        """Returns `SPLIT.tfrecord-00000-of-00004`."""
        return f"{split}.tfrecord-{shard:05d}-of-{num_shards:05d}"

    def open(self, path: Path, task: TaskInfo, eos_id: int) -> ShardWriter:
        """Returns a writer of one file."""
        return _TFRecordWriter(path, task, eos_id)

    def finish(self, folder: Path, task: TaskInfo) -> None:
        """Writes the descriptions of the splits, and last the mark that all is there."""
        for name, split in task.splits.items():
            info = {
                "num_shards": len(split.shards),
                "features": _features(task),
                "seqio_version": SEQIO_VERSION,
            }
            for kind, content in (("info", info), ("stats", _stats(split))):
                text = json.dumps(content, indent=2, sort_keys=True)
                (folder / f"{kind}.{name}.json").write_text(text, encoding="utf-8")
        (folder / COMPLETED).touch()


class _TFRecordWriter:
    """Keeps the records of a file in memory, and writes them in a random order.

    SeqIO shuffles a thousand examples at a time when it reads, which leaves a dataset that is
    sorted by its labels sorted.
    """

    def __init__(self, path: Path, task: TaskInfo, eos_id: int):
        self._path = path
        self._records: list[bytes] = []
        cached_with_eos = task.kind != "documents"
        self._eos = {
            "inputs": [eos_id] if cached_with_eos and task.inputs_add_eos else [],
            "targets": [eos_id] if cached_with_eos and task.targets_add_eos else [],
        }

    def write(self, example: Mapping[str, Any]) -> None:
        tokens = {
            name: [*example[name], *eos] for name, eos in self._eos.items() if name in example
        }
        self._records.append(encode_example({**example, **tokens}))

    def close(self) -> None:
        # The same file again, whenever and wherever it is written.
        random.Random(self._path.name).shuffle(self._records)
        with self._path.open("wb") as file:
            for start in range(0, len(self._records), _RECORDS_AT_ONCE):
                records = self._records[start : start + _RECORDS_AT_ONCE]
                lengths = [struct.pack("<Q", len(record)) for record in records]
                checksums = masked_crc32c(records), masked_crc32c(lengths)
                for length, record, of_record, of_length in zip(
                    lengths, records, *checksums, strict=True
                ):
                    file.write(length + of_length.tobytes() + record + of_record.tobytes())


def encode_example(example: Mapping[str, Any]) -> bytes:
    """Returns a serialized tf.train.Example: text as bytes, floats as float32, all else as int64.

    Its messages are Example.features (1), Features.feature (1, a map: key 1, value 2), and in a
    Feature one of bytes_list (1), float_list (2), int64_list (3), whose values (1) are packed.
    """
    entries = []
    for name, value in example.items():
        if isinstance(value, str):
            feature = _message(1, _message(1, value.encode("utf-8", errors="replace")))
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            feature = _message(2, _message(1, value.astype("<f4").tobytes()))
        else:
            # Ids are not negative, for which a varint would be longer.
            numbers = value.tolist() if isinstance(value, np.ndarray) else map(int, value)
            feature = _message(3, _message(1, b"".join(map(_varint, numbers))))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _message(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


@functools.lru_cache(maxsize=1 << 19)
def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _features(task: TaskInfo) -> dict[str, Any]:
    tokens = [name for name in ("inputs", "targets") if name in task.features]
    features: dict[str, Any] = dict.fromkeys(tokens, _TOKENS)
    features |= {f"{name}_pretokenized": _TEXT for name in tokens}
    return features | (_RANK if task.kind == "rank" else {})


def _stats(split: SplitInfo) -> dict[str, int]:
    stats = {"examples": split.num_examples}
    for name, number in split.num_tokens.items():
        stats[f"{name}_tokens"] = number
        stats[f"{name}_max_tokens"] = split.max_tokens[name]
    return stats
