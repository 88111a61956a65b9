"""Taking over SeqIO's caches, such as P3's published ones, without TensorFlow.

A task is a directory with files `SPLIT.tfrecord-00000-of-00004` (`mtf.seqio.tfrecord`). Their
ids are kept where they are those of the wanted vocabulary; else the text beside them is tokenised.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtf.cache.build import (
    NOT_CHOSEN,
    ROWS_PER_SHARD,
    CacheConfig,
    Plan,
    cache_info,
    check_cache_info,
    choose_tasks,
    is_finished,
    task_info,
)
from mtf.cache.format import INCOMPLETE, TaskInfo
from mtf.cache.writer import ShardWork
from mtf.errors import UserError, did_you_mean
from mtf.seqio.tfrecord import Feature, count_records, parse_example, read_records
from mtf.tasks.mixtures import Mixture
from mtf.tasks.task import Task
from mtf.text.features import encode_feature

# Examples whose ids are compared with those of their text.
_NUM_COMPARED = 100


def make_plan(mixture: Mixture, settings: CacheConfig, seqio_dir: Path) -> Plan:
    """Finds out what there is to take over; writes nothing.

    Raises:
      UserError: tasks are not there (all of them are named), or as for `build.make_plan`.
    """
    check_cache_info(settings.cache_dir, cache_info(settings))
    if not seqio_dir.is_dir():
        raise UserError(f"--from-seqio {seqio_dir} is not a directory")
    plan = Plan(mixture, settings)
    tasks = [task for task, _ in mixture.tasks]
    chosen = choose_tasks([task.name for task in tasks], settings.only)
    there = [path.name for path in seqio_dir.iterdir()]
    for task in tasks:
        folder = seqio_dir / task.name
        info = task_info(task, settings)
        source = f"SeqIO cache {folder}"
        info = dataclasses.replace(info, source=source, fingerprint=f"seqio:{info.fingerprint}")
        if task.name not in chosen:
            plan.absent[task.name] = NOT_CHOSEN
        elif is_finished(settings, info):
            plan.finished.append(task.name)
        else:
            works = _works(task, info, folder, settings)
            if works:
                plan.infos[task.name] = info
                plan.works += works
            else:
                hint = did_you_mean(task.name, there)
                plan.absent[task.name] = f"{seqio_dir} has no TFRecords of {task.name}.{hint}"
    missing = [reason for reason in plan.absent.values() if reason != NOT_CHOSEN]
    if missing and not (settings.skip_missing and plan.works):
        raise UserError(
            f"{len(missing)} tasks of {mixture.name} are missing (--skip-missing leaves them "
            "out):\n  " + "\n  ".join(missing)
        )
    return plan


def _works(task: Task, info: TaskInfo, folder: Path, settings: CacheConfig) -> list[ShardWork]:
    works = []
    wanted = settings.splits or (
        ("validation",) if task.kind == "rank" else ("train", "validation")
    )
    for split in wanted:
        files = sorted(folder.glob(f"{split}.tfrecord-*-of-*"))
        if not files:
            continue
        numbers = [count_records(file) for file in files]
        num_shards = settings.num_shards or -(-sum(numbers) // ROWS_PER_SHARD)
        num_shards = max(min(num_shards, len(files)), 1)
        for shard in range(num_shards):
            stop = sum(numbers[shard::num_shards])
            works.append(
                ShardWork(
                    task=task,
                    info=info,
                    folder=settings.cache_dir / (task.name + INCOMPLETE),
                    split=split,
                    shard=shard,
                    num_shards=num_shards,
                    start=0,
                    stop=min(stop, settings.max_rows or stop),
                    format=settings.format,
                    vocabulary=settings.vocabulary,
                    seed=settings.seed,
                    data_dir=None,
                    read=functools.partial(read_examples, tuple(files[shard::num_shards])),
                )
            )
    return works


def read_examples(files: tuple[Path, ...], work: ShardWork) -> Iterator[dict[str, Any]]:
    """Yields the examples of some files, which a shard is made of, as the values of a record.

    Raises:
      UserError: a file is damaged, has other features, or ids of another vocabulary and no text.
    """
    records = itertools.chain.from_iterable(read_records(file) for file in files)
    examples = map(parse_example, itertools.islice(records, work.stop))
    first = list(itertools.islice(examples, _NUM_COMPARED))
    place = files[0]
    encode = functools.partial(encode_feature, work.vocabulary, add_eos=False)
    names = [name for name in ("inputs", "targets") if name in work.info.features]
    same_ids = all(_has_ids_of(example, names, encode, work, place) for example in first)
    for example in itertools.chain(first, examples):
        values: dict[str, Any] = {}
        for name, dtype in work.info.features.items():
            if name in names:
                ids = _ids(example, name, work) if same_ids else encode(_text(example, name))
                values[name] = ids.astype(dtype)
            elif name in example:
                values[name] = np.asarray(example[name]).astype(dtype)
            else:
                raise UserError(f"{place}: its examples have no feature {name!r}")
        if work.format.keeps_text:
            values |= {f"{name}_pretokenized": _text(example, name) for name in names}
        yield values


def _has_ids_of(
    example: dict[str, Feature],
    names: Sequence[str],
    encode: Callable[[str], np.ndarray],
    work: ShardWork,
    place: Path,
) -> bool:
    """Returns whether the ids of an example are those of its text in the wanted vocabulary."""
    for name in names:
        if name not in example:
            raise UserError(
                f"{place}: its examples have no feature {name!r}, only "
                f"{', '.join(sorted(example)) or 'nothing'}; expected a cache of SeqIO"
            )
        ids = _ids(example, name, work)
        if f"{name}_pretokenized" in example:
            if not np.array_equal(ids, encode(_text(example, name))):
                return False
        elif ids.max(initial=0) >= work.vocabulary.vocab_size:
            raise UserError(
                f"{place}: {name} has ids up to {ids.max()}, which the vocabulary of "
                f"{work.vocabulary.vocab_size} ids does not have, and no {name}_pretokenized to "
                "be tokenised"
            )
    return True


def _ids(example: dict[str, Feature], name: str, work: ShardWork) -> np.ndarray:
    """Returns the ids of a feature without end of sequence."""
    ids = np.asarray(example[name])
    return ids[:-1] if len(ids) and ids[-1] == work.vocabulary.eos_id else ids


def _text(example: dict[str, Feature], name: str) -> str:
    (text,) = example[f"{name}_pretokenized"]
    return bytes(text).decode("utf-8", errors="replace")
