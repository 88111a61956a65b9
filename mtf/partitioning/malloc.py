"""How glibc's malloc treats the arrays of jax's CPU backend."""

from __future__ import annotations

import ctypes
from typing import Any

import jax

# Options of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def devices_keeping_memory() -> list[Any]:
    """Returns `jax.devices()`, having told malloc to keep freed memory if they are CPUs.

    XLA allocates the temporary arrays of a program anew in each call. By default glibc gives
    blocks of their size back to the kernel, and every training step begins with page faults that
    take 10 to 15% of its time (benchmarks/RESULTS.md). The peak of memory stays the same. Other C
    libraries are left alone, and so is jax if its backend has been started before.
    """
    # Before other threads start: each would get an arena of its own, where large blocks are mapped.
    _mallopt(_M_ARENA_MAX, 1)
    devices = jax.devices()
    if devices[0].platform == "cpu":
        keep_freed_memory()
    return devices


def keep_freed_memory() -> None:
    """Tells malloc to keep freed memory for later allocations of this process."""
    _mallopt(_M_ARENA_MAX, 1)
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, -1)  # never


def _mallopt(option: int, value: int) -> None:
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function(option, value)
