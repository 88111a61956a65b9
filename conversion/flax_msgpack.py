"""Reads `flax_model.msgpack` of transformers 4 (Flax), tensor by tensor.

The file is a tree in flax.serialization's form. msgpack would read all of it into memory, so the
structure is decoded here, and the place of each array in the file is noted.
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
from mtf.copies import local_copy
from mtf.storage import AnyPath

_NDARRAY = 1  # flax.serialization's extension type
_CHUNKED = "__msgpack_chunked_array__"  # and its key of an array in chunks (over 1 GiB)
_MAX_DEPTH = 50
_DTYPES = ("float32", "bfloat16", "V2", "float16")


def pytorch_name(name: str) -> str:
    """Returns PyTorch's name of a parameter of Flax."""
    *parents, last = name.split("/")
    return ".".join([*parents, "weight" if last in ("kernel", "embedding") else last])


class _Array(NamedTuple):
    """An array in the file: its raw values are `chunks` of (start, stop), one after another."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[tuple[int, int], ...]


def open_flax(path: AnyPath) -> dict[str, Tensor]:
    """Returns the tensors of a file under PyTorch's names, in PyTorch's layout.

    Raises IncompleteCheckpoint if the file is truncated or damaged.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    file = local_copy(path)
    with damaged(path, "is truncated or not a msgpack file of Flax"):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as m:
            tree = _Decoder(m).tree()
        arrays = dict(_leaves(tree))
    tensors = {}
    for name, array in arrays.items():
        # Flax's Dense has (in, out), PyTorch's Linear (out, in).
        is_kernel = name.endswith("/kernel") and len(array.shape) == 2
        tensor = _tensor(name, array, file)
        tensors[pytorch_name(name)] = tensor.view(pytorch_name(name), transposed=is_kernel)
    return tensors


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
        raise ValueError(f"{prefix.removesuffix('/')} is no array")


def _checked(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[tuple[int, int], ...]
) -> _Array:
    size = sum(stop - start for start, stop in chunks)
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of shape {shape} and type {dtype} has {size} bytes")
    return _Array(shape, dtype, chunks)


class _Decoder:
    """Decodes maps, strings, numbers and the places of arrays; see msgpack's specification."""

    def __init__(self, data: mmap.mmap):
        self._data, self._place = data, 0

    def tree(self) -> Any:
        """Decodes the file."""
        found = self._value(0)
        if self._place != len(self._data):
            raise ValueError(f"{len(self._data) - self._place} bytes follow its end")
        return found

    def _take(self, size: int) -> int:
        """Returns the place of the next `size` bytes, and skips them."""
        start = self._place
        if start + size > len(self._data):
            raise ValueError(f"it has {len(self._data):,} of at least {start + size:,} bytes")
        self._place += size
        return start

    def _number(self, size: int) -> int:
        start = self._take(size)
        return int.from_bytes(self._data[start : start + size], "big")

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        start = self._place
        kind = self._number(1)
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return self._map(kind & 0x0F, depth)
        if 0xA0 <= kind < 0xC0:
            return self._text(kind & 0x1F)
        if kind in (0xC2, 0xC3):
            return kind == 0xC3
        if 0xC7 <= kind <= 0xC9:
            return self._extension(self._number(1 << (kind - 0xC7)))
        if 0xCC <= kind <= 0xCF:
            return self._number(1 << (kind - 0xCC))
        if 0xD4 <= kind <= 0xD8:
            return self._extension(1 << (kind - 0xD4))
        if 0xD9 <= kind <= 0xDB:
            return self._text(self._number(1 << (kind - 0xD9)))
        if kind in (0xDE, 0xDF):
            return self._map(self._number(2 if kind == 0xDE else 4), depth)
        raise ValueError(f"unexpected type {kind:#x} at byte {start:,}")

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(count):
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise ValueError(f"a name before byte {self._place:,} is no text")
            found[key] = self._value(depth + 1)
        return found

    def _text(self, size: int) -> str:
        start = self._take(size)
        return self._data[start : start + size].decode()

    def _extension(self, size: int) -> _Array:
        """Decodes an array: [shape, name of the dtype, values]."""
        code = self._number(1)
        end = self._take(size) + size
        if code != _NDARRAY:
            raise ValueError(f"unknown extension {code} before byte {end:,}")
        # Shape and dtype are short; the values follow them until the end.
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(self._data[end - size : min(end, end - size + 512)])
        if unpacker.read_array_header() != 3:
            raise ValueError(f"an array before byte {end:,} is damaged")
        shape, dtype = tuple(unpacker.unpack()), unpacker.unpack()
        if dtype not in _DTYPES:
            raise ValueError(f"type {dtype!r}; expected one of {', '.join(_DTYPES)}")
        first = end - size + unpacker.tell()
        lengths = {0xC4: 1, 0xC5: 2, 0xC6: 4}
        width = lengths[self._data[first]]
        begin = first + 1 + width
        if begin + int.from_bytes(self._data[first + 1 : begin], "big") != end:
            raise ValueError(f"an array before byte {end:,} is damaged")
        return _checked(shape, dtype_from_name(dtype), ((begin, end),))


def _tensor(name: str, array: _Array, file: Path) -> Tensor:
    def read(index: Index) -> np.ndarray[Any, Any]:
        if len(array.chunks) == 1:
            start, _ = array.chunks[0]
            # The pages of the map are released after the copy.
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
