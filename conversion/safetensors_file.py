"""Reads and writes safetensors files, tensor by tensor.

The writer of `safetensors` needs all tensors of a file in memory, and sorts them. The writer here
writes the format itself: the header's length in 8 bytes, the header as JSON, then the raw arrays.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

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
    read_range,
)
from mtf.copies import local_copy
from mtf.storage import AnyPath, StorePath, read_exactly, write_parts

_METADATA = "__metadata__"
# How a zip file begins, and pickles of protocols 2 to 5.
_PICKLES = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_DTYPES = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}


def open_tensors(path: AnyPath) -> dict[str, Tensor]:
    """Opens a file and returns its tensors by name; raises ConversionError if it cannot.

    Of a file in a store, the header is read. A tensor, or some of its rows, is read in place. To
    read some of its columns, the file is copied once.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    if isinstance(path, StorePath):
        return _open_in_store(path)
    with _damaged(path):
        with safe_open(path, "np") as file:
            stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        start = 8 + int.from_bytes(read_range(path, 0, 8), "little")
        header = json.loads(read_range(path, 8, start))
    return {
        name: _tensor(path, name, each, start + header[name]["data_offsets"][0])
        for name, each in stored.items()
    }


@contextlib.contextmanager
def _damaged(path: AnyPath) -> Iterator[None]:
    """Turns errors of decoding the file into IncompleteCheckpoint, or tells that it is a pickle."""
    try:
        with damaged(path, "is truncated or not a safetensors file"):
            try:
                yield
            except SafetensorError as error:
                raise ValueError(str(error)) from error
    except IncompleteCheckpoint as error:
        size = path.size() if isinstance(path, StorePath) else path.stat().st_size
        if read_range(path, 0, min(2, size)) in _PICKLES:
            raise ConversionError(
                f"{path} is a pickle of PyTorch, not a safetensors file. If it contains the "
                f"weights, rename it to pytorch_model.bin; no code of it will be run."
            ) from error
        raise


def _tensor(path: Path, name: str, stored: Any, start: int) -> Tensor:
    shape, dtype = tuple(stored.get_shape()), _dtype(path, name, stored.get_dtype())

    def read(index: Index) -> np.ndarray[Any, Any]:
        # The file is mapped anew for each tensor, so that pages of others leave the memory.
        mapped = np.memmap(path, dtype, "r", start, shape or (1,))
        return np.array(mapped[index] if shape else mapped[0])

    return Tensor(name, shape, dtype, read, where=str(path))


def _dtype(path: AnyPath, name: str, kind: str) -> np.dtype[Any]:
    if kind not in _DTYPES:
        raise ConversionError(
            f"{path}: {name} has type {kind}; expected one of {', '.join(_DTYPES)}."
        )
    return _DTYPES[kind]


def _open_in_store(path: StorePath) -> dict[str, Tensor]:
    size = path.size()
    start = 8 + int.from_bytes(read_exactly(path, 0, min(8, size)), "little")
    with _damaged(path):
        if size < 8 or start > size:
            raise ValueError(f"it has {size} bytes")
        header = json.loads(read_exactly(path, 8, start))
        header.pop(_METADATA, None)
        places = {name: _place(name, entry) for name, entry in header.items()}
        expected = start + max((end for _, end in places.values()), default=0)
        if expected != size:
            raise ValueError(f"it has {size} of {expected} bytes")

    @functools.cache
    def copy() -> dict[str, Tensor]:
        return open_tensors(local_copy(path))

    def opened(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], first: int) -> Tensor:
        def read(index: Index) -> np.ndarray[Any, Any]:
            bounds = index_bounds(index, shape)
            if bounds[1:] != index_bounds(..., shape)[1:]:
                return copy()[name].read(index)
            row = math.prod(shape[1:]) * dtype.itemsize
            begin, end = bounds[0] if shape else (0, 1)
            content = read_exactly(path, first + begin * row, first + end * row)
            rows = (end - begin, *shape[1:]) if shape else ()
            return np.frombuffer(content, dtype).reshape(rows)

        return Tensor(name, shape, dtype, read, where=str(path))

    return {
        name: opened(
            name,
            tuple(entry["shape"]),
            _dtype(path, name, entry["dtype"]),
            start + places[name][0],
        )
        for name, entry in header.items()
    }


def _place(name: str, entry: dict[str, Any]) -> tuple[int, int]:
    """Returns the first byte of a tensor after the header, and the byte after its last."""
    begin, end = entry["data_offsets"]
    shape, dtype = entry["shape"], _DTYPES.get(entry["dtype"])
    is_place = is_shape([begin, end]) and is_shape(shape)
    if not is_place or (dtype and math.prod(shape) * dtype.itemsize != end - begin):
        raise ValueError(f"{name} of shape {shape} has bytes {begin} to {end}")
    return begin, end


def write_sharded(
    directory: AnyPath, tensors: Sequence[Tensor], dtype: np.dtype[Any], max_shard_size: int
) -> None:
    """Writes `model.safetensors`, or several files and `model.safetensors.index.json`.

    Tensors are read one at a time, and written in order as `dtype`. A file has at most
    `max_shard_size` bytes of tensors; a larger tensor gets its own file.
    """
    sizes = {tensor.name: math.prod(tensor.shape) * dtype.itemsize for tensor in tensors}
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        filled = sum(sizes[t.name] for t in shards[-1])
        if shards[-1] and filled + sizes[tensor.name] > max_shard_size:
            shards.append([])
        shards[-1].append(tensor)
    count = len(shards)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        part = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
        _write(directory / f"model{part}.safetensors", shard, dtype, sizes)
        places |= dict.fromkeys((t.name for t in shard), f"model{part}.safetensors")
    if count > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        write_json(directory / "model.safetensors.index.json", index)


def _write(
    path: AnyPath, tensors: Sequence[Tensor], dtype: np.dtype[Any], sizes: dict[str, int]
) -> None:
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    kind = next(name for name, known in _DTYPES.items() if known == dtype)
    end = 0
    for tensor in tensors:
        place = [end, end + sizes[tensor.name]]
        header[tensor.name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": place}
        end = place[1]
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # Aligns the arrays.

    def parts() -> Iterator[bytes | memoryview]:
        yield len(encoded).to_bytes(8, "little") + encoded
        yield from row_major(tensors, dtype)

    write_parts(path, parts())
