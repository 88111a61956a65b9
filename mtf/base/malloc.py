"""Sets options of glibc's malloc for JAX's CPU backend; other C libraries are not affected.

XLA allocates a program's temporary arrays on each call. By default, glibc returns large blocks to
the kernel when they are freed. The resulting page faults account for 10 to 20% of the duration of a
training step (benchmarks/RESULTS.md). The options do not change peak memory use.
"""

from __future__ import annotations

import ctypes

# Options of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def use_one_arena() -> None:
    """Makes threads that start later share the main thread's arena.

    Call this function before other threads start, because later threads may reuse an arena that
    already exists. In any arena except the main one, malloc maps each large block and returns it to
    the kernel, regardless of the other options.
    """
    _mallopt(_M_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory for later allocations of this process."""
    use_one_arena()
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, -1)  # never


def _mallopt(option: int, value: int) -> None:
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function(option, value)
