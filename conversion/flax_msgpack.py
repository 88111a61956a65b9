"""Reads the msgpack files of flax.serialization tensor by tensor.

They are the `flax_model.msgpack` files of the Flax classes of transformers 4, and the `checkpoint`
files of T5X. Decoding a file loads one array at a time into memory and records only where its
values are in the file. The values are read on demand. Flax is not used, because it imports JAX,
reads whole files, and cannot read bfloat16 arrays of its older versions.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
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

# flax.serialization's extension types, and its key for an array of over 1 GiB, stored in chunks.
_NDARRAY, _NUMPY_SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_HEAD = 512  # The number of bytes that identify an array by its shape, dtype and first values.


def pytorch_name(name: str) -> str:
    """Returns the PyTorch name for a Flax parameter."""
    *parents, last = name.split("/")
    return ".".join([*parents, "weight" if last in ("kernel", "embedding") else last])


class Array(NamedTuple):
    """An array in a file; `chunks` lists the (start, stop) byte ranges of its values, in order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[tuple[int, int], ...]

    def tensor(self, name: str, content: Callable[[], np.ndarray[Any, Any]], where: str) -> Tensor:
        """Returns a tensor; `content` returns the bytes of the file, each time a part is read."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            found = content()
            parts = [found[start:stop].view(self.dtype) for start, stop in self.chunks]
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return np.array(values.reshape(self.shape)[index])

        return Tensor(name, self.shape, self.dtype, read, where=where)


def open_flax(path: AnyPath) -> dict[str, Tensor]:
    """Returns a dict mapping PyTorch's names to the tensors of a file, in PyTorch's layout.

    Raises IncompleteCheckpoint if the file is truncated or damaged.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    file = local_copy(path)
    with damaged(path, "is truncated or not a Flax msgpack file"):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as m:
            arrays = dict(leaves(unpacked(m)))
        if others := [name for name, leaf in arrays.items() if not isinstance(leaf, Array)]:
            raise ValueError(f"{others[0]} is not an array")
    tensors = {}
    for name, array in arrays.items():
        # Kernels have the shape (in, out) in Flax's Dense and (out, in) in PyTorch's Linear.
        is_kernel = name.endswith("/kernel") and len(array.shape) == 2
        # Each read creates a memory map, so that its pages are released after the copy.
        tensor = array.tensor(name, lambda: np.memmap(file, np.uint8, "r"), str(file))
        tensors[pytorch_name(name)] = tensor.view(pytorch_name(name), transposed=is_kernel)
    return tensors


def unpacked(content: bytes | mmap.mmap) -> Any:
    """Returns the tree in a msgpack file, with an `Array` in place of each array."""
    end = 0

    def located(code: int, data: bytes) -> Array:
        """Returns the array in a msgpack extension whose content is [shape, dtype name, values]."""
        nonlocal end
        if code not in (_NDARRAY, _NUMPY_SCALAR):
            raise ValueError(f"unknown extension {code} after byte {end:,}")
        shape, name, values = msgpack.unpackb(data)
        dtype = dtype_from_name(name)
        if dtype.kind not in "biufV":
            raise ValueError(f"type {name!r} is not supported")
        # Only names and descriptions are stored between two arrays, whose extensions msgpack passes
        # in their order in the file, and an array ends with its values.
        end = content.find(data[:_HEAD], end) + len(data)
        return _checked(tuple(shape), dtype, ((end - len(values), end),))

    return msgpack.unpackb(content, ext_hook=located, strict_map_key=False)


def leaves(
    tree: Any, is_leaf: Callable[[Any], bool] = lambda value: False, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields the (name, value) pairs of a tree's leaves, also of dicts for which `is_leaf` is true.

    The chunks of an array are joined.
    """
    if isinstance(tree, dict) and _CHUNKED in tree:
        shape = tuple(tree["shape"][str(i)] for i in range(len(tree["shape"])))
        parts = [tree["chunks"][str(i)] for i in range(len(tree["chunks"]))]
        chunks = tuple(chunk for part in parts for chunk in part.chunks)
        yield prefix.removesuffix("/"), _checked(shape, parts[0].dtype, chunks)
    elif isinstance(tree, dict) and not is_leaf(tree):
        for key, value in tree.items():
            yield from leaves(value, is_leaf, f"{prefix}{key}/")
    else:
        yield prefix.removesuffix("/"), tree


def _checked(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[tuple[int, int], ...]
) -> Array:
    size = sum(stop - start for start, stop in chunks)
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of shape {shape} and type {dtype} has {size} bytes")
    return Array(shape, dtype, chunks)
