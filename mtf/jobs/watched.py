"""Monitors the processes of a job, locks its output directory and records their status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.run_end import RunEnd, failure_recorded, write_end
from mtf.base.writing import LOCK_FILE, locked, os_errors_refused
from mtf.partitioning.mesh import devices_keeping_memory
from mtf.partitioning.processes import is_first_process
from mtf.storage import AnyPath


def watched(hang_seconds: float | None, setting: str = "hang_seconds") -> Heartbeat:
    """Initializes JAX's backend and returns the heartbeat of this process.

    `setting` is the name by which messages refer to `hang_seconds`.
    """
    devices_keeping_memory()
    return Heartbeat(jax.process_index(), jax.process_count(), hang_seconds, setting)


@contextlib.contextmanager
def in_output_dir(heartbeat: Heartbeat, output_dir: AnyPath, shard: str = "") -> Iterator[None]:
    """Locks `output_dir`, and records the processes' status in it and how the block ended.

    Jobs of several shards share the directory. Each of them passes its own `shard`, which is part
    of the name of its lock, and does not record its status.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(os_errors_refused(output_dir, "output_dir"))
        if is_first_process():
            stack.enter_context(locked(output_dir, "output_dir", name=LOCK_FILE + shard))
        if shard:
            yield
            return
        stack.enter_context(heartbeat.recorded_in(output_dir))
        if is_first_process():
            stack.enter_context(failure_recorded(output_dir))
        yield
        if is_first_process():
            write_end(output_dir, RunEnd("finished"))
