"""Worker processes: batches and positions as without them, errors, signals, and their end."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import RunError, UserError
from mtf.data.loaders import make_train_iterator
from mtf.data.settings import HubStreamConfig, TextFilesConfig
from tests.cache import helpers as caches
from tests.data.helpers import BYTES, stored, write_pairs
from tests.data.test_contract import BATCH_SIZE, LENGTHS, LOADERS
from tests.test_loaders import assert_same, take


def _pairs(folder: Path) -> TextFilesConfig:
    return TextFilesConfig(
        files=write_pairs(folder / "pairs.tsv", 90), vocabulary=BYTES, task_feature_lengths=LENGTHS
    )


def _with(data: Any, num_workers: int, **values: Any) -> Any:
    data = dataclasses.replace(data, num_workers=num_workers)
    return make_train_iterator(data, **{"batch_size": BATCH_SIZE} | values)


def _processes(iterator: Any) -> list[Any]:
    return [process for process, _ in iterator._workers]


@pytest.mark.parametrize(
    "name",
    [
        "pairs",
        *(pytest.param(each, marks=pytest.mark.slow) for each in LOADERS if each != "pairs"),
    ],
)
def test_any_number_of_workers_makes_the_same_batches(name: str, tmp_path: Path) -> None:
    data = LOADERS[name](tmp_path)
    alone = _with(data, 0)
    batches, middle = take(alone, 30), stored(alone)
    after, end = take(alone, 30), stored(alone)
    one, three = _with(data, 1), _with(data, 3)  # of 2, 3 and 3 rows
    assert stored(three) == stored(_with(data, 0))
    for iterator in (one, three):
        assert_same(take(iterator, 30), batches)
        assert stored(iterator) == middle
    # Any number goes on where another has stopped; also on an iterator that has made more.
    assert_same(take(three, 7), after[:7])
    for iterator in (three, _with(data, 0)):
        iterator.set_state(middle)
        assert stored(iterator) == middle
        assert_same(take(iterator, 30), after)
        assert stored(iterator) == end
    # One of two hosts, whose five rows a third worker would not divide evenly.
    host = take(_with(data, 0, shard_id=1, num_shards=2), 10)
    assert_same(take(_with(data, 9, shard_id=1, num_shards=2, prefetch=0), 10), host)


def test_errors_are_those_of_the_loader(tmp_path: Path) -> None:
    data = _pairs(tmp_path)
    other = make_train_iterator(data, batch_size=2 * BATCH_SIZE)
    (tmp_path / "cut.tsv").write_text("a\tb\nc\n")
    states = [stored(make_train_iterator(data, batch_size=4)), stored(other) | {"data": "text=x"}]
    for num_workers in (0, 2):
        with pytest.raises(UserError, match=r"cut.tsv:2: expected 2 columns .* not 1"):
            _with(dataclasses.replace(data, files=str(tmp_path / "cut.tsv")), num_workers)
        for state, named in zip(states, ("no entry for row [4-7]", "different"), strict=True):
            with pytest.raises(UserError, match=named):
                _with(data, num_workers).set_state(state)


@pytest.mark.slow
def test_an_error_during_training_is_that_of_the_loader(tmp_path: Path) -> None:
    cache_dir = caches.write_cache(tmp_path)
    (file,) = (cache_dir / "math_sums").glob("*.array_record")
    content = bytearray(file.read_bytes())
    content[100:400] = bytes(300)
    file.write_bytes(content)
    messages = []
    for num_workers in (0, 2):
        with pytest.raises(UserError, match=r"array_record cannot be read") as raised:
            for _ in _with(caches.data(cache_dir), num_workers):
                time.sleep(0.1)  # so that the worker has ended before it is asked again
        messages.append(re.sub("0x[0-9a-f]+", "", str(raised.value)))
    assert messages[0] == messages[1]


def test_workers_ignore_signals_and_end_with_their_iterator(tmp_path: Path) -> None:
    iterator, alone = _with(_pairs(tmp_path), 2), _with(_pairs(tmp_path), 0)
    processes = _processes(iterator)
    assert_same(take(iterator, 1), take(alone, 1))
    for process in processes:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process.pid, number)
    assert_same(take(iterator, 9), take(alone, 9))
    del iterator
    for process in processes:
        process.join(timeout=10)
        assert process.exitcode == -signal.SIGKILL


def test_a_killed_worker_ends_the_run_with_a_message(tmp_path: Path) -> None:
    iterator = _with(_pairs(tmp_path), 2)
    next(iterator)
    _processes(iterator)[1].kill()
    with pytest.raises(RunError, match=r"worker process of data.num_workers ended with status -9"):
        take(iterator, 9)


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    """Neither after a normal end, nor if the parent is killed."""
    write_pairs(tmp_path / "pairs.tsv", 90)
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from mtf.data import ByteVocabulary, TextFilesConfig
from mtf.data.loaders import make_train_iterator
if __name__ == "__main__":
    data = TextFilesConfig(
        files="pairs.tsv", vocabulary=ByteVocabulary(), task_feature_lengths={LENGTHS},
        num_workers=2,
    )
    batches = make_train_iterator(data, batch_size=8)
    next(batches)
    print(*(process.pid for process, _ in batches._workers), flush=True)
    sys.stdin.read()
"""
    )
    for kill in (False, True):
        with subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as parent:
            assert parent.stdin is not None and parent.stdout is not None
            pids = parent.stdout.readline().split()
            if kill:
                parent.kill()
            parent.stdin.close()
            assert parent.wait(30) == (-signal.SIGKILL if kill else 0)
            assert parent.stderr is not None and parent.stderr.read() == ""
        assert len(pids) == 2
        for _ in range(100):
            if not any(Path("/proc", pid).exists() for pid in pids):
                break
            time.sleep(0.1)
        else:
            pytest.fail("a worker is left")


def test_only_some_kinds_of_data_take_workers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"num_workers=2 needs data.loader='cache', not 'memory'"):
        dataclasses.replace(caches.data(tmp_path), loader="memory", cache_dir=None, num_workers=2)
    with pytest.raises(UserError, match=r"num_workers must be at least 0, not -1"):
        HubStreamConfig(dataset="x", vocabulary=BYTES, task_feature_lengths=LENGTHS, num_workers=-1)
