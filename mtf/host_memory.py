"""The memory of this machine. Imports no JAX."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_bytes() -> int:
    """Returns the memory that programs may use: the machine's, or the limit of the container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path(file).read_text()))
    return min(found)


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


def gib(count: int) -> str:
    """Returns bytes as text in GiB."""
    return f"{count / 2**30:,.2f} GiB"
