"""Communication between the processes of a run."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

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


def from_first_process(value: Any) -> Any:
    """Returns the `value` of the first process in all processes; it must be JSON-serializable.

    All processes must call this function. If there is only one process, `value` is returned
    unchanged.
    """
    if jax.process_count() == 1:
        return value
    wait_for_others()
    content = json.dumps(value).encode() if is_first_process() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(content), np.int32)))
    padded = np.zeros(size, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    received = multihost_utils.broadcast_one_to_all(padded)
    return json.loads(np.asarray(received, np.uint8).tobytes())
