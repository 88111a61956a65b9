"""Reads tensors in blocks of rows, in several threads and with limited memory use."""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from conversion.tensor import Tensor
from mtf.storage.pool import ReadingPool

# The maximum size, in bytes, of a block of rows, unless the stored chunks are larger.
_BLOCK_BYTES = 64 * 2**20
# The maximum if a chunk exceeds `_BLOCK_BYTES`. Reading part of a chunk decompresses all of it.
_LARGE_BLOCK_BYTES = 512 * 2**20
# The maximum total size, in bytes, of the jobs in progress; a larger job runs alone.
_BYTES_IN_PROGRESS = 192 * 2**20
_NUM_THREADS = min(8, os.cpu_count() or 1)
_TILE = 128

_T = TypeVar("_T")


def in_order(jobs: Iterable[tuple[int, Callable[[], _T]]]) -> Iterator[_T]:
    """Runs jobs in threads and yields their results in order.

    Args:
      jobs: (size in bytes, job) pairs. The next job starts when its size plus the sizes of all
        started jobs whose results have not been yielded yet is within the memory limit.
    """
    started: deque[tuple[int, Future[_T]]] = deque()
    in_progress = 0
    pool = ReadingPool(_NUM_THREADS)
    try:
        for size, job in jobs:
            while started and in_progress + size > _BYTES_IN_PROGRESS:
                in_progress -= started[0][0]
                yield started.popleft()[1].result()
            started.append((size, pool.submit(job)))
            in_progress += size
        while started:
            yield started.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def row_major(tensors: Sequence[Tensor], dtype: np.dtype[Any]) -> Iterator[memoryview]:
    """Converts tensors to `dtype`, and yields their bytes in blocks, in row-major order.

    No block contains values of two tensors. Raises ConversionError if a tensor cannot be read.
    """

    def read(tensor: Tensor, rows: slice) -> memoryview:
        part = tensor.read((rows,) if tensor.shape else ...)
        return contiguous(part, dtype).reshape(-1).view(np.uint8).data

    def jobs() -> Iterator[tuple[int, Callable[[], memoryview]]]:
        for tensor in tensors:
            row_size = math.prod(tensor.shape[1:]) * max(tensor.dtype.itemsize, dtype.itemsize)
            for rows in row_blocks(tensor):
                yield (rows.stop - rows.start) * row_size, functools.partial(read, tensor, rows)

    return in_order(jobs())


def row_blocks(tensor: Tensor) -> Iterator[slice]:
    """Yields slices that cover all rows of a tensor, aligned with stored chunks if possible."""
    num_rows = (tensor.shape or (1,))[0]
    row_bytes = max(1, math.prod(tensor.shape[1:]) * tensor.dtype.itemsize)
    rows = max(1, _BLOCK_BYTES // row_bytes)
    if tensor.chunks:
        chunk = tensor.chunks[0]
        rows = rows // chunk * chunk or min(chunk, max(1, _LARGE_BLOCK_BYTES // row_bytes))
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def contiguous(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Converts an array to `dtype` in row-major order, by tiles, three times as fast as NumPy."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return np.ascontiguousarray(array, dtype=dtype)
    result = np.empty(array.shape, dtype)
    for i in range(0, array.shape[0], _TILE):
        for j in range(0, array.shape[1], _TILE):
            result[i : i + _TILE, j : j + _TILE] = array[i : i + _TILE, j : j + _TILE]
    return result
