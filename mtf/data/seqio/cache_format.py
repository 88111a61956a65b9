"""Writes SeqIO's cache format, which T5X and SeqIO read with `use_cached=True`.

    DIR/TASK/SPLIT.tfrecord-00000-of-00004   tf.train.Example records
    DIR/TASK/info.SPLIT.json                 number of files; shapes and types of the features
    DIR/TASK/stats.SPLIT.json                numbers of examples and tokens
    DIR/TASK/COMPLETED

As in the output of `seqio_cache_tasks`, tokens include EOS if the task adds it, and the texts are
included as `FEATURE_pretokenized`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mtf.data.cache.format import ArrayRecordFormat, ShardWriter, TaskInfo
from mtf.data.seqio.tfrecord import encode_example, write_records

# The version of SeqIO that writes this layout. SeqIO reads this version from the info files.
SEQIO_VERSION = "0.0.20"
COMPLETED = "COMPLETED"

_TEXT = {"shape": [], "dtype": "string"}
_TOKENS = {"shape": [None], "dtype": "int32"}
# Additional features of ranked tasks.
_RANK = {
    "idx": _TOKENS,
    "is_correct": {"shape": [], "dtype": "bool"},
    "weight": {"shape": [], "dtype": "float32"},
}


class SeqioFormat(ArrayRecordFormat):
    """Writes TFRecord files, and the JSON files that describe them to SeqIO."""

    name: Literal["array_record", "seqio"] = "seqio"
    keeps_text = True

    def shard_name(self, split: str, shard: int, num_shards: int) -> str:
        """Returns `SPLIT.tfrecord-00000-of-00004`."""
        return f"{split}.tfrecord-{shard:05d}-of-{num_shards:05d}"

    def open(self, path: Path, task: TaskInfo, eos_id: int) -> ShardWriter:
        """See `ArrayRecordFormat`."""
        return _TFRecordWriter(path, task, eos_id)

    def finish(self, folder: Path, task: TaskInfo) -> None:
        """Writes the descriptions of the splits, and the file that marks a task as complete."""
        tokens = [name for name in ("inputs", "targets") if name in task.features]
        features: dict[str, Any] = dict.fromkeys(tokens, _TOKENS)
        features |= {f"{name}_pretokenized": _TEXT for name in tokens}
        features |= _RANK if task.kind == "rank" else {}
        for name, split in task.splits.items():
            num_shards = len(split.shards)
            info = {"num_shards": num_shards, "features": features, "seqio_version": SEQIO_VERSION}
            stats = {"examples": split.num_examples}
            stats |= {f"{feature}_tokens": number for feature, number in split.num_tokens.items()}
            stats |= {f"{f}_max_tokens": split.max_tokens[f] for f in split.num_tokens}
            for kind, content in (("info", info), ("stats", stats)):
                text = json.dumps(content, indent=2, sort_keys=True)
                (folder / f"{kind}.{name}.json").write_text(text, encoding="utf-8")
        (folder / COMPLETED).touch()


class _TFRecordWriter:
    """Collects the records of a file in memory, and writes them in random order.

    SeqIO shuffles only a thousand examples at a time when it reads them, which is not enough if the
    dataset is sorted.
    """

    def __init__(self, path: Path, task: TaskInfo, eos_id: int):
        self._path = path
        self._records: list[bytes] = []
        adds_eos = {"inputs": task.inputs_add_eos, "targets": task.targets_add_eos}
        self._ends = [name for name in adds_eos if adds_eos[name] and task.kind != "documents"]
        self._eos_id = eos_id

    def write(self, example: Mapping[str, Any]) -> None:
        tokens = {name: [*example[name], self._eos_id] for name in self._ends if name in example}
        self._records.append(encode_example({**example, **tokens}))

    def close(self) -> None:
        # The seed is the file's name, so the order is always the same.
        random.Random(self._path.name).shuffle(self._records)
        write_records(self._path, self._records)
