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
    blocks of their size back to the kernel, and every training step begins with hundreds of
    thousands of page faults, which take 10 to 15% of its time (benchmarks/RESULTS.md). The peak of
    memory stays the same. Other C libraries are left alone, and so is jax if its backend has been
    started before.
    """
    _mallopt(_M_ARENA_MAX, 1)  # Before the backend starts its threads: each would get an arena.
    devices = jax.devices()
    if devices[0].platform == "cpu":
        _mallopt(_M_MMAP_MAX, 0)
        _mallopt(_M_TRIM_THRESHOLD, -1)  # never
    return devices


def _mallopt(option: int, value: int) -> None:
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function(option, value)
