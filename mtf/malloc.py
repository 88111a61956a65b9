"""Options of glibc's malloc for JAX's CPU backend; no effect with other C libraries.

XLA allocates the temporary arrays of a program in each call. By default, glibc returns blocks of
their size to the kernel, and every training step starts with page faults that take 10 to 20% of its
time (benchmarks/RESULTS.md). The peak of memory does not change.
"""

from __future__ import annotations

import ctypes

# Options of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def use_one_arena() -> None:
    """Makes threads that start later share the arena of the main thread.

    In an arena of its own, a thread maps each large block and returns it to the kernel, whatever
    the other options are. A thread that starts later may inherit such an arena from one that has
    ended, so this has an effect only if no thread has allocated memory before.
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
