"""Records and watches what the processes of a job do. Imports no JAX until it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mtf.cluster import meeting
from mtf.cluster.heartbeat import Heartbeat
from mtf.run_end import RunEnd, failure_recorded, write_end
from mtf.storage import AnyPath


def watched(hang_seconds: float | None, setting: str = "hang_seconds") -> Heartbeat:
    """Returns the heartbeat of this process in a job with `setting` at `hang_seconds`.

    Initializes JAX's backend.
    """
    import jax

    from mtf.partitioning.mesh import devices_keeping_memory

    devices_keeping_memory()
    devices = [str(device) for device in jax.local_devices()]
    return Heartbeat(jax.process_index(), jax.process_count(), devices, hang_seconds, setting)


@contextlib.contextmanager
def recorded(heartbeat: Heartbeat, output_dir: AnyPath) -> Iterator[None]:
    """Records in the output directory what the processes do during the block, and how it ends."""
    from mtf.partitioning.processes import is_first_process

    meeting.before_end(lambda news: write_end(output_dir, RunEnd("failed", news)))
    with heartbeat.recorded_in(output_dir):
        if not is_first_process():
            yield
            return
        with failure_recorded(output_dir):
            yield
        write_end(output_dir, RunEnd("finished"))
