"""Whether arrays fit into the devices' memory, before any of them is made."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from mtf.errors import UserError

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def num_bytes(shapes: Any, shardings: Any = None) -> int:
    """Returns bytes of a tree of arrays or, with shardings, of one device's part of it."""

    def size(x: Any, sharding: Any = None) -> int:
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    trees = (shapes,) if shardings is None else (shapes, shardings)
    return sum(jax.tree.leaves(jax.tree.map(size, *trees)))


def gib(count: int) -> str:
    """Returns bytes in GiB."""
    return f"{count / 2**30:,.2f} GiB"


def device_bytes(mesh: Mesh) -> int | None:
    """Memory of each device: a CPU's is its part of the machine's; None where it is not known."""
    devices = mesh.local_devices
    if devices[0].platform == "cpu":
        return _machine_bytes() // len(devices)
    return (devices[0].memory_stats() or {}).get("bytes_limit")


def _machine_bytes() -> int:
    """Memory of this machine, or of the container if that may use less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path(file).read_text()))
    return min(found)


def check(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Refuses what the devices cannot hold.

    Args:
      mesh: of the devices.
      needed: what → bytes of each device that it takes at least.

    Raises:
      UserError: says the bytes of each part, and what there is.
    """
    there, total = device_bytes(mesh), sum(needed.values())
    if there is not None and total > there:
        parts = ", ".join(f"{what} {count:,}" for what, count in needed.items())
        devices = f"{mesh.size} × {mesh.local_devices[0].device_kind}"
        raise UserError(
            f"At least {total:,} bytes ({gib(total)}) are needed on each of {devices}, "
            f"and there are {there:,} ({gib(there)}): {parts}. Choose a smaller model or batch, "
            "more trainer.num_microbatches, or more devices (partitioner.fsdp, num_partitions)."
        )
