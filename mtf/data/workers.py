"""Makes batches in worker processes (`data.num_workers`).

Each worker makes some of the rows of every batch, like each process of a run on several hosts.
Therefore, neither batches nor stored positions depend on the number of workers. Workers write
their rows to memory that all processes share; pipes carry only requests and positions.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import math
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from mtf.base import signals
from mtf.base.errors import RunError
from mtf.data.packing import HostBatch, to_batch
from mtf.data.row_streams import BatchIterator, IteratorState, Shard
from mtf.data.settings import AnyData

# The number of batches in shared memory, the rows of a batch, and the tokens of all features.
_Shape = tuple[int, int, int]
_NEVER = object()


class WorkersIterator:
    """A `BatchIterator` whose batches are made in advance by worker processes."""

    def __init__(self, data: AnyData, shard: Shard, prefetch: int, num_workers: int):
        """Starts the workers, at most one per row; raises the same errors as the data's loader."""
        layout = to_batch([], data.task_feature_lengths, 1, data.pack)
        widths = np.cumsum([feature.shape[1] for feature in layout.values()]).tolist()
        self._names, self._ends = list(layout), widths[:-1]
        # A slot is written again only after its batch has been returned.
        self._num_slots = prefetch + 1
        shape = (self._num_slots, len(shard.rows), widths[-1])
        context = multiprocessing.get_context("spawn")  # JAX's threads make forking unsafe.
        memory: Any = context.RawArray(ctypes.c_int32, math.prod(shape))
        self._slots = itertools.cycle(np.frombuffer(memory, np.int32).reshape(shape))
        self._num_ahead = 0
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        Finalize(self, _end, (self._workers,), exitpriority=0)
        with signals.blocked():
            resource_tracker.ensure_running()  # Starting this process unblocks signals.
        # A signal may reach the whole process group, but only this process acts on it.
        with signals.blocked():
            for part in shard.divided(num_workers):
                here, there = context.Pipe()
                mine = slice(part.rows.start - shard.rows.start, part.rows.stop - shard.rows.start)
                arguments = (there, data, part, memory, shape, mine)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                there.close()
                self._workers.append((process, here))
        self._states = self._replies()

    def __iter__(self) -> WorkersIterator:
        return self

    def __next__(self) -> HostBatch:
        while self._num_ahead < self._num_slots:
            self._ask(None)
            self._num_ahead += 1
        self._states = self._replies()
        self._num_ahead -= 1
        features = np.split(next(self._slots), self._ends, axis=1)
        return {name: x.copy() for name, x in zip(self._names, features, strict=True)}

    def get_state(self) -> IteratorState:
        """See `BatchIterator`."""
        states = [pickle.loads(state) for state in self._states]
        return {name: value for state in states for name, value in state.items()}

    def set_state(self, state: IteratorState) -> None:
        """See `BatchIterator`; raises the same errors as the data's loader."""
        for _ in range(self._num_ahead):
            self._replies()
            next(self._slots)
        self._num_ahead = 0
        self._ask(state)
        self._states = self._replies()

    def _ask(self, request: IteratorState | None) -> None:
        for _, connection in self._workers:
            with contextlib.suppress(ConnectionError):  # `_replies` tells why the worker has ended.
                connection.send(request)

    def _replies(self) -> list[bytes]:
        """Returns the position of each worker; raises the error of one that has failed."""
        replies = []
        for process, connection in self._workers:
            try:
                replies.append(connection.recv())
            except (EOFError, ConnectionError) as error:
                process.join()
                raise RunError(
                    f"A worker process of data.num_workers ended with status {process.exitcode}. "
                    "If it was killed because memory ran out (-9), continue with a smaller "
                    "data.num_workers"
                ) from error
            if isinstance(replies[-1], Exception):
                raise replies[-1]
        return replies


def _end(workers: Sequence[tuple[SpawnProcess, Connection]]) -> None:
    for process, connection in workers:
        process.kill()
        process.join()
        connection.close()


def _work(
    connection: Connection, data: AnyData, shard: Shard, memory: Any, shape: _Shape, mine: slice
) -> None:
    """Runs a worker process: sends its position first and after each request, or its error."""
    signals.end_with_parent()
    os.environ["JAX_PLATFORMS"] = "cpu"  # The accelerators belong to the parent.
    slots = np.frombuffer(memory, np.int32).reshape(shape)[:, mine]
    try:
        for state in _states(data, shard, slots, iter(connection.recv, _NEVER)):
            connection.send(pickle.dumps(state))
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        with contextlib.suppress(ConnectionError):  # The parent may have ended.
            connection.send(error)


def _states(
    data: AnyData, shard: Shard, slots: np.ndarray, requests: Iterable[IteratorState | None]
) -> Iterator[IteratorState]:
    """Makes a batch for each request that is None, and restores the position in any other."""
    loader = importlib.import_module(data.loaded_by)
    batches: BatchIterator = loader.make_train_iterator(data, shard, prefetch=0)
    free = itertools.cycle(slots)
    yield batches.get_state()
    for request in requests:
        if request is None:
            np.concatenate(list(next(batches).values()), axis=1, out=next(free))
        else:
            batches.set_state(request)
        yield batches.get_state()
