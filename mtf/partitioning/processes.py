"""Communication between the processes of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# One year in milliseconds.
_NO_LIMIT = 365 * 24 * 3600 * 1000


def is_first_process() -> bool:
    """Returns whether this is process 0, which writes files and prints."""
    return jax.process_index() == 0


def wait_for_others() -> None:
    """On CPUs, waits until all processes are ready for a collective operation.

    Gloo, JAX's collectives library on CPUs, fails if a process is 30 s late for the first operation
    of a group of devices. This function waits at a barrier without such a time limit. If a process
    dies or hangs, the heartbeat ends the other processes.
    """
    if jax.process_count() == 1 or jax.default_backend() != "cpu":
        return
    from orbax.checkpoint import multihost

    barrier: Any = multihost.get_barrier_sync_fn()
    barrier(key="mtf", timeout_ms=_NO_LIMIT)


def from_all_processes(value: Any) -> list[Any]:
    """Returns the `value` of each process in all processes; it must be JSON-serializable.

    All processes must call this function. If there is only one process, `value` is not changed.
    """
    if jax.process_count() == 1:
        return [value]
    wait_for_others()
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([content.size])).reshape(-1)
    padded = np.pad(content, (0, int(sizes.max()) - content.size))
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def from_first_process(value: Any) -> Any:
    """Returns the `value` of the first process in all processes; see `from_all_processes`."""
    return from_all_processes(value)[0]


class AnyProcess:
    """Returns whether a flag was set in any process; the result is the same in all processes.

    A reduction over all devices combines the flags. Its result is returned by the next call, so
    that no step waits for the reduction. With one process, the flag itself is returned.
    """

    def __init__(self, flag: Callable[[], bool]) -> None:
        self._flag = flag
        self._before: jax.Array | None = None
        mesh = Mesh(np.array(jax.devices()), ("all",))
        self._split = NamedSharding(mesh, PartitionSpec("all"))
        self._any = jax.jit(jax.numpy.any, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self) -> bool:
        flag = self._flag()
        if jax.process_count() == 1:
            return flag
        local = np.full(jax.local_device_count(), flag)
        before = self._before
        self._before = self._any(jax.make_array_from_process_local_data(self._split, local))
        return before is not None and bool(before)
