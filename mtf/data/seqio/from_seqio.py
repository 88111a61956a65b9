"""Converts SeqIO's caches, such as the published caches of P3, to mtf's caches without TensorFlow.

The directory of a task contains files `SPLIT.tfrecord-00000-of-00004` or, in P3 on the hub since
2024, files `SPLIT-00000-of-00004.parquet` with the same features. Token ids are copied if they
belong to the requested vocabulary; otherwise, the text is tokenized again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtf.base.downloads import copied
from mtf.base.errors import UserError, did_you_mean
from mtf.data.cache.build import CacheBuild, begin, task_info
from mtf.data.cache.format import TaskInfo
from mtf.data.cache.settings import CacheConfig
from mtf.data.cache.writer import ReadShard, ShardWork
from mtf.data.seqio.tfrecord import Feature, count_records, parse_example, read_records
from mtf.data.sources.files import open_parquet
from mtf.data.sources.hub import download_folders
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.task import Task
from mtf.data.text.features import encode_feature
from mtf.data.text.vocabularies import Vocabulary
from mtf.storage import as_path

# Number of examples whose ids are compared with a tokenization of their text.
_NUM_COMPARED = 100


def prepare(mixture: Mixture, settings: CacheConfig, source: str) -> CacheBuild:
    """Prepares the conversion of a mixture, without writing anything into the cache.

    `source` is a directory, a path in a store (`gs://` or `s3://`), or a path on the hub
    (`hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`). If it is remote, the files of the tasks are
    copied to this machine. Raises UserError if `source` cannot be read or any tasks are missing.
    Also raises the same errors as `build.begin`.
    """
    if not source.startswith("hf://") and not as_path(source).is_dir():
        raise UserError(
            f"--from-seqio {source} is not a directory; expected the directory DIR that contains "
            "DIR/TASK/SPLIT.tfrecord-*, or hf://datasets/OWNER/NAME"
        )

    def describe(task: Task, settings: CacheConfig) -> TaskInfo:
        info = task_info(task, settings)
        where = f"SeqIO cache {source.rstrip('/')}/{task.name}"
        return dataclasses.replace(info, source=where, fingerprint=f"seqio:{info.fingerprint}")

    build, todo = begin(mixture, settings, describe)
    seqio_dir = _local_directory(source, [task.name for task, _ in todo])
    there = [path.name for path in seqio_dir.iterdir()] if todo else []
    missing = {}
    for task, info in todo:
        kinds = ("validation",) if task.kind == "rank" else ("train", "validation")
        for split in settings.splits or kinds:
            if files := _files(seqio_dir / task.name, split):
                build.add(task, info, split, _shards(files, settings))
        if task.name not in build.works:
            hint = "" if settings.skip_missing else did_you_mean(task.name, there)
            missing[task.name] = f"{source} contains no files of this task{hint and '.'}{hint}"
    build.leave_out(missing)
    names = [task.name for task, _ in mixture.tasks]
    build.absent = {name: build.absent[name] for name in names if name in build.absent}
    return build


def _local_directory(source: str, tasks: Sequence[str]) -> Path:
    """Returns a local directory with the tasks' files, which are copied if `source` is remote."""
    if not tasks:
        return Path(source)
    if source.startswith("hf://"):
        return download_folders(source, tasks, "--from-seqio")
    return copied(source, "--from-seqio", lambda file: file.partition("/")[0] in tasks)


def _files(folder: Path, split: str) -> list[Path]:
    """Returns the TFRecord files of a split or, if there are none, its Parquet files."""
    patterns = (f"{split}.tfrecord-*-of-*", f"{split}-*-of-*.parquet")
    return next((found for each in patterns if (found := sorted(folder.glob(each)))), [])


def _examples(file: Path) -> Iterator[dict[str, Feature]]:
    """Yields the examples of a file, in the form that `parse_example` returns."""
    if file.suffix != ".parquet":
        yield from map(parse_example, read_records(file))
        return
    for row in open_parquet(file):
        yield {name: _feature(value) for name, value in row.items() if value is not None}


def _feature(value: Any) -> Feature:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return [text.encode() for text in values]
    return np.array(values, np.float32 if isinstance(value, float) else np.int64)


def _shards(files: Sequence[Path], settings: CacheConfig) -> list[tuple[int, int, ReadShard]]:
    """Divides the files of a split into shards; returns (start, stop, read) for each shard."""
    numbers = [
        len(open_parquet(file)) if file.suffix == ".parquet" else count_records(file)
        for file in files
    ]
    num_shards = min(settings.num_shards_of(sum(numbers)), len(files))
    shards: list[tuple[int, int, ReadShard]] = []
    for shard in range(num_shards):
        stop = sum(numbers[shard::num_shards])
        read = functools.partial(read_examples, tuple(files[shard::num_shards]))
        shards.append((0, min(stop, settings.max_rows or stop), read))
    return shards


def read_examples(files: tuple[Path, ...], work: ShardWork) -> Iterator[dict[str, Any]]:
    """Yields the examples of a shard's files (see `ShardWork.read`).

    Raises UserError if a file is damaged, lacks features, or contains ids of a different vocabulary
    without the text.
    """
    vocabulary, file = work.settings.vocabulary, files[0]

    def checked(example: dict[str, Feature]) -> dict[str, Feature]:
        for name in work.info.features:
            if name not in example:
                raise UserError(
                    f"an example in {file} or a later file of its shard lacks the feature "
                    f"{name!r}; it has {', '.join(sorted(example)) or 'none'}. Expected a "
                    "SeqIO cache of this task"
                )
        return example

    all_examples = itertools.chain.from_iterable(map(_examples, files))
    examples = map(checked, itertools.islice(all_examples, work.stop))
    first = list(itertools.islice(examples, _NUM_COMPARED))
    names = [name for name in ("inputs", "targets") if name in work.info.features]
    has_ids = all(_has_ids_of(vocabulary, e, name, file) for e in first for name in names)
    for example in itertools.chain(first, examples):
        texts = {name: _text(example, name) for name in names if work.settings.format.keeps_text}
        values: dict[str, Any] = {}
        for name, dtype in work.info.features.items():
            if name not in names:
                value = np.asarray(example[name])
            elif has_ids:
                value = _ids(vocabulary, example, name)
            else:
                value = encode_feature(vocabulary, _text(example, name), add_eos=False)
            values[name] = value.astype(dtype)
        yield values | {f"{name}_pretokenized": text for name, text in texts.items()}


def _has_ids_of(vocabulary: Vocabulary, example: dict[str, Feature], name: str, file: Path) -> bool:
    """Returns whether the token ids of a feature belong to the requested vocabulary."""
    ids = _ids(vocabulary, example, name)
    if f"{name}_pretokenized" in example:
        expected = encode_feature(vocabulary, _text(example, name), add_eos=False)
        return np.array_equal(ids, expected)
    if ids.max(initial=0) >= vocabulary.vocab_size:
        raise UserError(
            f"{file}: {name} has ids up to {ids.max()}, but the vocabulary has only "
            f"{vocabulary.vocab_size} ids, and there is no {name}_pretokenized to tokenize instead"
        )
    return True


def _ids(vocabulary: Vocabulary, example: dict[str, Feature], name: str) -> np.ndarray:
    """Returns the ids of a feature without the final EOS."""
    ids = np.asarray(example[name])
    return ids[:-1] if len(ids) and ids[-1] == vocabulary.eos_id else ids


def _text(example: dict[str, Feature], name: str) -> str:
    (text,) = example[f"{name}_pretokenized"]
    return bytes(text).decode("utf-8", errors="replace")
