"""Monitors the processes of a job and records their status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.run_end import RunEnd, failure_recorded, write_end
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
def recorded(heartbeat: Heartbeat, output_dir: AnyPath) -> Iterator[None]:
    """Records the processes' status in `output_dir` during the block, and how the block ended."""
    with heartbeat.recorded_in(output_dir):
        if not is_first_process():
            yield
            return
        with failure_recorded(output_dir):
            yield
        write_end(output_dir, RunEnd("finished"))
