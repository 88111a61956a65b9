"""Reads and writes safetensors files tensor by tensor.

To write a file, the package `safetensors` sorts the tensors and needs all of them in memory.
Therefore, this module implements the format itself. A file begins with the length of the header, in
8 bytes; the header, as JSON, and the arrays follow.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from conversion.blocks import row_major
from conversion.json_file import write_json
from conversion.tensor import (
    ConversionError,
    IncompleteCheckpoint,
    Index,
    Tensor,
    damaged,
    index_bounds,
    is_shape,
)
from mtf.storage import AnyPath, is_remote, read_range
from mtf.storage.copies import local_copy

_METADATA = "__metadata__"
_DTYPES = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}


def open_tensors(path: AnyPath) -> dict[str, Tensor]:
    """Opens a file, reading only its header, and returns a dict mapping names to tensors.

    Whole tensors and rows of a remote file are read directly from the store. The first time a range
    of columns is read, the file is downloaded. Raises ConversionError if the file cannot be opened.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    with damaged(path, "is truncated or not a safetensors file"):
        size, end = path.stat().st_size, 0
        start = 8 + int.from_bytes(read_range(path, 0, min(8, size)), "little")
        if size < 8 or start > size:
            raise ValueError(f"it has {size} bytes")
        header = json.loads(read_range(path, 8, start))
        header.pop(_METADATA, None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            end = _checked_end(name, entry, end)
        if start + end != size:
            raise ValueError(f"it has {size} of {start + end} bytes")

    @functools.cache
    def copy() -> dict[str, Tensor]:
        return open_tensors(local_copy(path))

    def opened(name: str, entry: dict[str, Any]) -> Tensor:
        shape, dtype = tuple(entry["shape"]), _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ConversionError(
                f"{path}: {name} has type {entry['dtype']}; expected one of {', '.join(_DTYPES)}."
            )
        first = start + entry["data_offsets"][0]

        def read(index: Index) -> np.ndarray[Any, Any]:
            if not is_remote(path):
                # Each read creates a memory map, so that its pages are released after the copy.
                mapped = np.memmap(path, dtype, "r", first, shape or (1,))
                return np.array(mapped[index] if shape else mapped[0])
            bounds = index_bounds(index, shape)
            if bounds[1:] != index_bounds(..., shape)[1:]:
                return copy()[name].read(index)
            row = math.prod(shape[1:]) * dtype.itemsize
            begin, end = bounds[0] if shape else (0, 1)
            content = read_range(path, first + begin * row, first + end * row)
            return np.frombuffer(content, dtype).reshape((end - begin, *shape[1:]) if shape else ())

        return Tensor(name, shape, dtype, read, where=str(path))

    return {name: opened(name, entry) for name, entry in header.items()}


def _checked_end(name: str, entry: dict[str, Any], start: int) -> int:
    """Checks that a tensor begins `start` bytes after the header, and returns where it ends."""
    begin, end = entry["data_offsets"]
    shape, dtype = entry["shape"], _DTYPES.get(entry["dtype"])
    is_valid = is_shape([begin, end]) and is_shape(shape) and begin == start <= end
    if not is_valid or (dtype and math.prod(shape) * dtype.itemsize != end - begin):
        raise ValueError(f"{name} of shape {shape} has bytes {begin} to {end}")
    return int(end)


def write_sharded(
    directory: AnyPath, tensors: Sequence[Tensor], dtype: np.dtype[Any], max_shard_size: int
) -> None:
    """Writes `model.safetensors`, or several files and `model.safetensors.index.json`.

    Tensors are written in order, with the type `dtype`. The tensors in a file have a total size of
    at most `max_shard_size` bytes; a tensor that exceeds this size is written to a separate file.
    """
    sizes = {tensor.name: math.prod(tensor.shape) * dtype.itemsize for tensor in tensors}
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        filled = sum(sizes[t.name] for t in shards[-1])
        if shards[-1] and filled + sizes[tensor.name] > max_shard_size:
            shards.append([])
        shards[-1].append(tensor)
    count = len(shards)
    file_of: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        part = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
        _write(directory / f"model{part}.safetensors", shard, dtype, sizes)
        file_of |= dict.fromkeys((t.name for t in shard), f"model{part}.safetensors")
    if count > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": file_of}
        write_json(directory / "model.safetensors.index.json", index)


def _write(
    path: AnyPath, tensors: Sequence[Tensor], dtype: np.dtype[Any], sizes: dict[str, int]
) -> None:
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    kind = next(name for name, known in _DTYPES.items() if known == dtype)
    end = 0
    for tensor in tensors:
        offsets = [end, end + sizes[tensor.name]]
        header[tensor.name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": offsets}
        end = offsets[1]
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # Align the arrays to 8 bytes.
    with path.open("wb") as opened:
        opened.write(len(encoded).to_bytes(8, "little") + encoded)
        for part in row_major(tensors, dtype):
            opened.write(part)
