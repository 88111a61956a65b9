"""Reads checkpoints in TensorFlow's tensor bundle format without TensorFlow.

`PREFIX.index` is a table in LevelDB's format that maps tensor names to BundleEntryProtos. The files
`PREFIX.data-00000-of-00001`, … contain the arrays. Every block of the table and every array has a
CRC-32C. The format is described in TensorFlow's tensor_bundle.proto and LevelDB's table_format.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np

from conversion.protobuf import message_class
from conversion.tensor import (
    ConversionError,
    IncompleteCheckpoint,
    Index,
    Tensor,
    damaged,
    index_bounds,
)
from mtf.storage import AnyPath, read_range

# The maximum size in bytes of a block of rows to read; a block contains at least one row.
BYTES_AT_ONCE = 16 * 2**20
_FOOTER = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER = 5  # the compression (1 byte) and the CRC (4 bytes) after each block
# TensorFlow's DataType → dtype, for the types in T5 checkpoints.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype("<f2"),
}

_SHAPE = {"Dim": {1: "int64 size"}, "Shape": {2: "repeated Dim dim", 3: "bool unknown_rank"}}
_Header = message_class("mtf.bundle_header", {"Header": {1: "int32 shards", 2: "int32 endianness"}})
_Entry = message_class(
    "mtf.bundle_entry",
    {
        **_SHAPE,
        "Slice": {},
        "Entry": {
            1: "int32 dtype",
            2: "Shape shape",
            3: "int32 shard_id",
            4: "int64 offset",
            5: "int64 size",
            6: "fixed32 crc32c",
            7: "repeated Slice slices",
        },
    },
)


def open_bundle(prefix: AnyPath) -> dict[str, Tensor]:
    """Returns a dict mapping TensorFlow's names to tensors; reads only the checkpoint's index.

    The CRC of an array is checked when any part of the array is first read.

    Args:
      prefix: path of the index without ".index", such as `DIR/model.ckpt-1000000`.

    Raises:
      IncompleteCheckpoint: a file is missing, truncated or damaged.
      ConversionError: the checkpoint uses a feature or type that T5 checkpoints do not use.
    """
    index = _index(prefix)
    shards, entries = _decoded(index)

    @functools.cache
    def file(shard: int) -> tuple[AnyPath, int]:
        if not 0 <= shard < shards:
            raise IncompleteCheckpoint(f"{index} refers to data file {shard}; there are {shards}.")
        path = _data(prefix, shard, shards)
        if not path.is_file():
            raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
        return path, path.stat().st_size

    return {name: _tensor(index, name, entry, file) for name, entry in entries.items()}


def bundle_files(prefix: AnyPath) -> list[AnyPath]:
    """Returns a checkpoint's files, the index last; raises the same errors as `open_bundle`."""
    shards, _ = _decoded(_index(prefix))
    return [*(_data(prefix, shard, shards) for shard in range(shards)), _index(prefix)]


def _index(prefix: AnyPath) -> AnyPath:
    return prefix.with_name(f"{prefix.name}.index")


def _data(prefix: AnyPath, shard: int, shards: int) -> AnyPath:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def _decoded(index: AnyPath) -> tuple[int, dict[str, Any]]:
    """Returns the number of data files, and a dict mapping tensor names to index entries."""
    if not index.is_file():
        raise IncompleteCheckpoint(f"{index.parent} has no file {index.name}.")
    with damaged(index):
        items = dict(_table(index.read_bytes()))
        if b"" not in items:
            raise ValueError("its header is missing")
        header = _Header.FromString(items.pop(b""))
        entries = {name.decode(): _Entry.FromString(value) for name, value in items.items()}
    if header.endianness:
        raise ConversionError(f"{index}: the arrays are big-endian; expected little-endian ones.")
    return header.shards, entries


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the (key, value) pairs of a table in LevelDB's format."""
    magic = int.from_bytes(content[-8:], "little")
    if len(content) < _FOOTER or magic != _MAGIC:
        raise ValueError(f"its {len(content)} bytes do not end with the footer of an index")
    footer = content[-_FOOTER:]
    _, position = _handle(footer, 0)  # Skip the handle of the metaindex, which is empty.
    (start, size), _ = _handle(footer, position)
    for _, handle in _block(content, start, size):
        yield from _block(content, *_handle(handle, 0)[0])


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Decodes a block handle; returns the block's (start, size) and the end of the handle."""
    start, position = _varint(data, position)
    size, position = _varint(data, position)
    return (start, size), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        value, position = value | (byte & 0x7F) << shift, position + 1
        if byte < 0x80:
            return value, position
    raise ValueError(f"there is no number at byte {position} of a block")


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields a block's entries. Stored keys omit the prefix they share with the previous key."""
    end = start + size
    if end + _TRAILER > len(content) - _FOOTER:
        raise ValueError(f"the block at byte {start} ends after the end of the file")
    stored = int.from_bytes(content[end + 1 : end + _TRAILER], "little")
    if _masked_crc(google_crc32c.Checksum(content[start : end + 1])) != stored:
        raise ValueError(f"the CRC of the block at byte {start} is wrong")
    if content[end]:
        raise ValueError(f"the block at byte {start} is compressed, which is not supported")
    data = content[start:end]
    num_restarts = int.from_bytes(data[-4:], "little")
    limit = len(data) - 4 * (num_restarts + 1)
    if limit < 0:
        raise ValueError(f"the block at byte {start} is too short")
    key, position = b"", 0
    while position < limit:
        shared, position = _varint(data, position)
        unshared, position = _varint(data, position)
        length, position = _varint(data, position)
        if shared > len(key) or position + unshared + length > limit:
            raise ValueError(f"an entry of the block at byte {start} is too long")
        key = key[:shared] + data[position : position + unshared]
        position += unshared
        yield key, data[position : position + length]
        position += length


def _masked_crc(checksum: Any) -> int:
    """Returns the CRC in LevelDB's masked form."""
    crc = int.from_bytes(checksum.digest(), "big")
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tensor(
    index: AnyPath, name: str, entry: Any, file: Callable[[int], tuple[AnyPath, int]]
) -> Tensor:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise ConversionError(
            f"{index}: {name} has TensorFlow type {entry.dtype}; expected one of "
            f"{', '.join(f'{number} ({known})' for number, known in _DTYPES.items())}."
        )
    if entry.slices:
        raise ConversionError(
            f"{index}: {name} is stored in slices, which Mesh TensorFlow does not write."
        )
    shape = tuple(dim.size for dim in entry.shape.dim)
    size = math.prod(shape) * dtype.itemsize
    if entry.shape.unknown_rank or min(shape, default=1) < 0 or size != entry.size:
        raise IncompleteCheckpoint(
            f"{index}: {name} has shape {shape} and type {dtype}, but {entry.size} bytes."
        )
    path, available = file(entry.shard_id)
    if entry.offset < 0 or entry.offset + size > available:
        raise IncompleteCheckpoint(
            f"{path} is truncated: {name} ends at byte {entry.offset + size:,} of {available:,}."
        )

    def parts(first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yields (first row, bytes) for each block of the rows in `range(first, last)`."""
        row = math.prod(shape[1:]) * dtype.itemsize
        step = max(1, BYTES_AT_ONCE // max(1, row))
        for begin in range(first, last if row else first, step):
            start, stop = (entry.offset + n * row for n in (begin, min(begin + step, last)))
            part = bytes(read_range(path, start, stop))
            if len(part) != stop - start:
                raise IncompleteCheckpoint(f"{path} is truncated in {name}.")
            yield begin, part

    def check(checksum: Any) -> None:
        if _masked_crc(checksum) != entry.crc32c:
            raise IncompleteCheckpoint(
                f"{path} is damaged: the CRC of {name} is wrong. Copy the file again."
            )

    @functools.cache
    def check_all() -> None:
        checksum = google_crc32c.Checksum()
        for _, part in parts(0, num_rows):
            checksum.update(part)
        check(checksum)

    num_rows = (shape or (1,))[0]

    def read(index: Index) -> np.ndarray[Any, Any]:
        """Returns the array or a part of it; needs extra memory: 16 MiB, or one row if larger."""
        bounds = index_bounds(index, shape or (1,))
        (first, last), others = bounds[0], tuple(slice(*bound) for bound in bounds[1:])
        is_whole = (first, last) == (0, num_rows)
        if not is_whole:
            check_all()
        result = np.empty([max(0, stop - start) for start, stop in bounds], dtype)
        checksum = google_crc32c.Checksum()
        for begin, part in parts(first, last):
            checksum.update(part)
            rows = np.frombuffer(part, dtype).reshape(-1, *shape[1:])
            result[begin - first :][: len(rows)] = rows[(slice(None), *others)]
        if is_whole:
            check(checksum)
        return result if shape else result.reshape(())

    return Tensor(name, shape, dtype, read, where=str(path))
