"""Checks that arrays fit into the devices' memory, before allocating them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from mtf.errors import UserError

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def num_bytes(shapes: Any, shardings: Any = None) -> int:
    """Returns the bytes of a tree of arrays or, with shardings, of one device's part."""

    def size(x: Any, sharding: Any = None) -> int:
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    trees = (shapes,) if shardings is None else (shapes, shardings)
    return sum(jax.tree.leaves(jax.tree.map(size, *trees)))


def gib(count: int) -> str:
    """Returns bytes as text in GiB."""
    return f"{count / 2**30:,.2f} GiB"


def device_bytes(devices: Sequence[Any]) -> int | None:
    """Returns the memory of each device here, for a CPU its share of the machine; None: unknown."""
    if devices[0].platform != "cpu":
        return (devices[0].memory_stats() or {}).get("bytes_limit")
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path(file).read_text()))
    return min(found) // len(devices)


def available_bytes() -> int | None:
    """Returns the memory of this machine that programs can still allocate; None: unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(x for x in lines if x.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError, StopIteration):  # "max": no limit
        folder = Path("/sys/fs/cgroup")
        limit, used = (int((folder / f"memory.{x}").read_text()) for x in ("max", "current"))
        stat = (folder / "memory.stat").read_text().splitlines()
        freed = next(int(x.split()[1]) for x in stat if x.startswith("inactive_file "))
        found.append(limit - used + freed)
    return min(found, default=None)


def check(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Refuses, with UserError, what exceeds the memory of a device; `needed` is use → bytes."""
    available, total = device_bytes(mesh.local_devices), sum(needed.values())
    if available is not None and total > available:
        parts = ", ".join(f"{what} {count:,}" for what, count in needed.items())
        devices = f"{mesh.size} × {mesh.local_devices[0].device_kind}"
        raise UserError(
            f"At least {total:,} bytes ({gib(total)}) are needed on each device ({devices}), but "
            f"only {available:,} ({gib(available)}) are available. Bytes needed: {parts}. Use a "
            "smaller model or batch, more microbatches (trainer.num_microbatches), or more devices "
            "(partitioner.fsdp, partitioner.num_partitions)."
        )
