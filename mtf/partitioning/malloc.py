"""Options of glibc's malloc for JAX's CPU backend."""

from __future__ import annotations

import ctypes
from typing import Any

import jax

# Options of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def devices_keeping_memory() -> list[Any]:
    """Returns `jax.devices()`; if they are CPUs, makes malloc keep freed memory.

    XLA allocates the temporary arrays of a program in each call. By default, glibc returns blocks
    of their size to the kernel, and every training step starts with page faults that take 10 to
    15% of its time (benchmarks/RESULTS.md). The peak of memory does not change. Has no effect with
    other C libraries, or if JAX's backend was initialized before.
    """
    # Before other threads start, each of which would get its own arena with mapped large blocks.
    _mallopt(_M_ARENA_MAX, 1)
    devices = jax.devices()
    if devices[0].platform == "cpu":
        keep_freed_memory()
    return devices


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory for later allocations of this process."""
    _mallopt(_M_ARENA_MAX, 1)
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, -1)  # never


def _mallopt(option: int, value: int) -> None:
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function(option, value)
