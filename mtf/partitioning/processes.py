"""What the processes of a run share."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

# Milliseconds of a year.
_NO_LIMIT = 365 * 24 * 3600 * 1000


def is_first_process() -> bool:
    """Returns whether this process writes files and prints."""
    return jax.process_index() == 0


def wait_for_others() -> None:
    """Waits on CPUs, before a collective operation, until all processes are here.

    Gloo, which connects CPUs, gives up if a process is 30 s late for the first operation among some
    devices. JAX's coordinator waits without a limit: if a process dies or hangs, `mtf.cluster` ends
    the others.
    """
    if jax.process_count() == 1 or jax.default_backend() != "cpu":
        return
    from orbax.checkpoint import multihost

    barrier: Any = multihost.get_barrier_sync_fn()
    barrier(key="mtf", timeout_ms=_NO_LIMIT)


def from_first_process(value: Any) -> Any:
    """Returns the first process's value, which JSON can express, on all processes.

    All processes must call it. With one process, it returns the value itself.
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
