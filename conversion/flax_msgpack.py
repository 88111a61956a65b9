"""Reads the `flax_model.msgpack` files of transformers 4's Flax classes tensor by tensor.

The file contains a tree in the format of flax.serialization. Opening the file loads one array at a
time into memory and records only where its values are in the file. The values are read on demand.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np

from conversion.tensor import (
    IncompleteCheckpoint,
    Index,
    Tensor,
    damaged,
    dtype_from_name,
    is_shape,
)
from mtf.storage import AnyPath
from mtf.storage.copies import local_copy

_NDARRAY = 1  # flax.serialization's extension type for an array
_CHUNKED = "__msgpack_chunked_array__"  # flax.serialization's key for an array of over 1 GiB
_HEAD = 512  # The number of bytes that identify an array by its shape, dtype and first values.
_DTYPES = ("float32", "bfloat16", "V2", "float16")


def pytorch_name(name: str) -> str:
    """Returns the PyTorch name for a Flax parameter."""
    *parents, last = name.split("/")
    return ".".join([*parents, "weight" if last in ("kernel", "embedding") else last])


class _Array(NamedTuple):
    """An array in a file; `chunks` lists the (start, stop) byte ranges of its values, in order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[tuple[int, int], ...]


def open_flax(path: AnyPath) -> dict[str, Tensor]:
    """Returns a dict mapping PyTorch's names to the tensors of a file, in PyTorch's layout.

    Raises IncompleteCheckpoint if the file is truncated or damaged.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    file = local_copy(path)
    with damaged(path, "is truncated or not a Flax msgpack file"):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as m:
            tree = msgpack.unpackb(m, ext_hook=_Arrays(m), strict_map_key=False)
        arrays = dict(_leaves(tree))
    tensors = {}
    for name, array in arrays.items():
        # Kernels have the shape (in, out) in Flax's Dense and (out, in) in PyTorch's Linear.
        is_kernel = name.endswith("/kernel") and len(array.shape) == 2
        tensor = _tensor(name, array, file)
        tensors[pytorch_name(name)] = tensor.view(pytorch_name(name), transposed=is_kernel)
    return tensors


class _Arrays:
    """Locates the arrays in a file; msgpack calls this object with each one's content, in order."""

    def __init__(self, file: mmap.mmap):
        self._file, self._end = file, 0

    def __call__(self, code: int, data: bytes) -> _Array:
        """Returns the array in a msgpack extension whose content is [shape, dtype name, values]."""
        if code != _NDARRAY:
            raise ValueError(f"unknown extension {code} after byte {self._end:,}")
        shape, dtype, values = msgpack.unpackb(data)
        if dtype not in _DTYPES:
            raise ValueError(f"type {dtype!r}; expected one of {', '.join(_DTYPES)}")
        # Only names are stored between two arrays, and an array ends with its values.
        self._end = self._file.find(data[:_HEAD], self._end) + len(data)
        place = (self._end - len(values), self._end)
        return _checked(tuple(shape), dtype_from_name(dtype), (place,))


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, _Array]]:
    if isinstance(tree, _Array):
        yield prefix.removesuffix("/"), tree
    elif isinstance(tree, dict) and _CHUNKED in tree:
        shape = tuple(tree["shape"][str(i)] for i in range(len(tree["shape"])))
        parts = [tree["chunks"][str(i)] for i in range(len(tree["chunks"]))]
        chunks = tuple(chunk for part in parts for chunk in part.chunks)
        yield prefix.removesuffix("/"), _checked(shape, parts[0].dtype, chunks)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}{key}/")
    else:
        raise ValueError(f"{prefix.removesuffix('/')} is not an array")


def _checked(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[tuple[int, int], ...]
) -> _Array:
    size = sum(stop - start for start, stop in chunks)
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of shape {shape} and type {dtype} has {size} bytes")
    return _Array(shape, dtype, chunks)


def _tensor(name: str, array: _Array, file: Path) -> Tensor:
    def read(index: Index) -> np.ndarray[Any, Any]:
        if len(array.chunks) == 1:
            start, _ = array.chunks[0]
            # Each read creates a memory map, so that its pages are released after the copy.
            mapped = np.memmap(file, array.dtype, "r", start, array.shape or (1,))
            return np.array(mapped[index] if array.shape else mapped[0])
        flat = np.empty(math.prod(array.shape), array.dtype)
        filled = 0
        for start, stop in array.chunks:
            count = (stop - start) // array.dtype.itemsize
            flat[filled : filled + count] = np.memmap(file, array.dtype, "r", start, (count,))
            filled += count
        return flat.reshape(array.shape)[index]

    return Tensor(name, array.shape, array.dtype, read, where=str(file))
