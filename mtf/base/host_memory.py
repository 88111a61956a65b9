"""Determines how much memory this host has. Does not import JAX."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_bytes() -> int:
    """Returns the machine's memory, or the container's memory limit if it is lower, in bytes."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit.
            found.append(int(Path(file).read_text()))
    return min(found)


def gib(count: int) -> str:
    """Formats a number of bytes in GiB, such as "1.50 GiB"."""
    return f"{count / 2**30:,.2f} GiB"
