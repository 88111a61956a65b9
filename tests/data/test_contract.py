"""What every loader promises: rows do not depend on the number of processes, and exact resumes."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from mtf.data.loaders import make_train_iterator
from mtf.data.packing import HostBatch
from mtf.data.settings import TextCorporaConfig, TextFilesConfig
from mtf.data.tasks.objectives import PrefixLM, SpanCorruption
from tests.cache import helpers as caches
from tests.data.helpers import BYTES, LENGTHS_32, stored, write_pairs
from tests.test_loaders import assert_same, take, write_documents

LENGTHS = {"inputs": 64, "targets": 64}
GROUPS = SpanCorruption(merge_documents=4)
BATCH_SIZE = 8


def _text(files: str, **values: Any) -> Any:
    settings: dict[str, Any] = {"vocabulary": BYTES, "task_feature_lengths": LENGTHS}
    return TextFilesConfig(files=files, **settings | values)


def _documents(folder: Path) -> Any:
    files = write_documents(folder / "documents.txt", 43)
    return _text(files, task_feature_lengths=LENGTHS_32, objective=GROUPS, num_held_out=4)


def _corpora(folder: Path, objective: Any) -> Any:
    sizes = {"en": 300, "ro": 60, "sw": 12}
    files = {name: write_documents(folder / f"{name}.txt", size) for name, size in sizes.items()}
    return TextCorporaConfig(
        vocabulary=BYTES,
        task_feature_lengths=LENGTHS,
        files=files,
        objective=objective,
        num_held_out=2,
    )


def _stream(folder: Path, kind: str) -> Any:
    pytest.importorskip("datasets")
    from tests.data.test_stream_loader import stream, write_files

    return stream(write_files(folder, 5, 50, kind), objective=GROUPS)


LOADERS = {
    "pairs": lambda folder: _text(write_pairs(folder / "pairs.tsv", 90), num_held_out=7),
    "documents": _documents,
    "corpora of prefixes": lambda folder: _corpora(folder, PrefixLM()),
    "corpora of spans": lambda folder: _corpora(folder, GROUPS),
    "stream of json": lambda folder: _stream(folder, "jsonl"),
    "stream of parquet": lambda folder: _stream(folder, "parquet"),
    "cache": lambda folder: caches.data(caches.write_cache(folder, num_shards=3)),
    "cache of documents": lambda folder: caches.data(
        caches.write_cache(folder, caches.mixture((caches.text_task(GROUPS), None)))
    ),
}


def rows_of(batches: list[HostBatch], index: int, number: int) -> list[HostBatch]:
    size = BATCH_SIZE // number
    rows = slice(index * size, (index + 1) * size)
    return [{name: value[rows] for name, value in batch.items()} for batch in batches]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", LOADERS)
def test_processes_share_the_rows_and_any_number_goes_on(
    name: str, pack: bool, tmp_path: Path
) -> None:
    data = dataclasses.replace(LOADERS[name](tmp_path), pack=pack)
    whole = make_train_iterator(data, batch_size=BATCH_SIZE)
    first, middle = take(whole, 33), stored(whole)
    second, end = take(whole, 40), stored(whole)
    for number in (2, 8):
        shards = [
            make_train_iterator(data, batch_size=BATCH_SIZE, shard_id=i, num_shards=number)
            for i in range(number)
        ]
        for state, batches in ((middle, first), (end, second)):
            found: dict[str, Any] = {}
            for index, shard in enumerate(shards):
                assert_same(take(shard, len(batches)), rows_of(batches, index, number))
                found |= stored(shard)
            assert found == state
            for shard in shards:  # as one process has stored it
                shard.set_state(state)


@pytest.mark.parametrize(
    ("name", "prefetch"), [("pairs", 0), ("stream of json", 0), *((name, 2) for name in LOADERS)]
)
def test_a_resume_repeats_and_skips_nothing(name: str, prefetch: int, tmp_path: Path) -> None:
    data = LOADERS[name](tmp_path)
    iterator = make_train_iterator(data, batch_size=BATCH_SIZE, prefetch=prefetch)
    states, batches = {0: stored(iterator)}, []
    for step in range(1, 130):
        batches.append(next(iterator))
        if step in (1, 17, 18, 64):
            states[step] = stored(iterator)
    for step, state in states.items():
        resumed = make_train_iterator(data, batch_size=BATCH_SIZE, prefetch=prefetch)
        resumed.set_state(state)
        assert stored(resumed) == state
        assert_same(take(resumed, 50), batches[step : step + 50])
    # Back again, on an iterator that has gone on.
    iterator.set_state(states[17])
    assert_same(take(iterator, 20), batches[17:37])


@pytest.mark.parametrize("name", ["pairs", "cache"])
def test_no_thread_outlives_its_iterator(name: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    iterator = make_train_iterator(LOADERS[name](tmp_path), batch_size=2)
    next(iterator)
    workers = set(threading.enumerate()) - before
    assert workers
    del iterator
    for worker in workers:
        worker.join(timeout=10)
        assert not worker.is_alive()
