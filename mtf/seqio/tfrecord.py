"""TFRecord files of `tf.train.Example`, read without TensorFlow.

A record is its length (uint64), a checksum of that, its bytes, and a checksum of them (uint32,
little-endian: CRC-32C, masked). An Example is a protocol buffer of named lists of integers, floats
or byte strings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mtf.errors import UserError

_HEADER = struct.Struct("<QI")
_RECORDS_AT_ONCE = 512
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INT64_LIST, _FLOAT_LIST = 3, 2

Feature = np.ndarray | list[bytes]


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_TABLE = _crc_table()


def masked_crc32c(records: Sequence[bytes]) -> np.ndarray:
    """Returns TFRecord's checksums of some byte strings, (records,) uint32.

    All of them go side by side, a byte of each at a time: that is what makes it bearable in numpy.
    """
    lengths = np.array([len(record) for record in records])
    order = np.argsort(-lengths, kind="stable")  # The longest first: those that end drop out.
    content = np.zeros((lengths.max(initial=0), len(records)), np.uint8)
    for column, index in enumerate(order):
        content[: lengths[index], column] = np.frombuffer(records[index], np.uint8)
    crc = np.full(len(records), 0xFFFFFFFF, np.uint32)
    num_active = np.searchsorted(-lengths[order], -np.arange(len(content)), side="left")
    for values, active in zip(content, num_active, strict=True):
        part = crc[:active]
        part[:] = _TABLE[(part ^ values[:active]) & 0xFF] ^ (part >> 8)
    crc = ~crc
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    found = np.empty_like(masked)
    found[order] = masked
    return found


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of a file.

    Raises:
      UserError: a checksum differs, or the file is cut off.
    """
    with path.open("rb") as file:
        number = 0
        while True:
            records: list[bytes] = []
            checksums: list[int] = []
            while len(records) < _RECORDS_AT_ONCE and (header := file.read(_HEADER.size)):
                if len(header) < _HEADER.size:
                    raise _damaged(path, number + len(records), "is cut off")
                length, length_checksum = _HEADER.unpack(header)
                if masked_crc32c([header[:8]])[0] != length_checksum:
                    raise _damaged(path, number + len(records), "has a wrong length checksum")
                content = file.read(length + 4)
                if len(content) < length + 4:
                    raise _damaged(path, number + len(records), "is cut off")
                records.append(content[:length])
                checksums.append(struct.unpack_from("<I", content, length)[0])
            if not records:
                return
            wrong = np.flatnonzero(masked_crc32c(records) != np.array(checksums, np.uint32))
            if len(wrong):
                raise _damaged(path, number + int(wrong[0]), "has a wrong checksum")
            yield from records
            number += len(records)


def count_records(path: Path) -> int:
    """Returns the number of records of a file, from their lengths alone."""
    size, position, number = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise _damaged(path, number, "is cut off")
            position += _HEADER.size + _HEADER.unpack(header)[0] + 4
            number += 1
    return number


def parse_example(record: bytes) -> dict[str, Feature]:
    """Returns the features of a serialised tf.train.Example.

    Integers are int64 and floats float32, (values,); byte strings are a list.
    """
    features: dict[str, Feature] = {}
    for _, example in _fields(memoryview(record)):  # Example.features
        for _, entry in _fields(example):  # Features.feature: a map of key and value
            parts = dict(_fields(entry))
            features[bytes(parts[1]).decode()] = _feature(parts.get(2, memoryview(b"")))
    return features


def _feature(message: memoryview) -> Feature:
    """Returns the values of a Feature: bytes_list (1), float_list (2) or int64_list (3)."""
    for kind, values in _fields(message):
        if kind == _INT64_LIST:
            parts = [
                np.array([value], np.int64) if isinstance(value, int) else _varints(value)
                for _, value in _fields(values)
            ]
            return np.concatenate(parts) if parts else np.empty(0, np.int64)
        if kind == _FLOAT_LIST:
            return np.frombuffer(b"".join(value for _, value in _fields(values)), "<f4")
        return [bytes(value) for _, value in _fields(values)]
    return []


def _varints(content: memoryview) -> np.ndarray:
    """Returns packed integers of 7 bits a byte, (values,) int64."""
    values = np.frombuffer(content, np.uint8)
    if not len(values):
        return np.empty(0, np.int64)
    starts = np.concatenate(([0], np.flatnonzero(values < 0x80)[:-1] + 1))
    lengths = np.diff(np.append(starts, len(values)))
    shifts = 7 * (np.arange(len(values)) - np.repeat(starts, lengths)).astype(np.uint64)
    bits = (values & 0x7F).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields (field number, value) of a protocol buffer message; a varint is an int."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value  # type: ignore[misc]
            continue
        if wire_type == _BYTES:
            length, position = _varint(message, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}[wire_type]
        yield number, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value - (1 << 64) if value >> 63 else value), position
        shift += 7


def _damaged(path: Path, number: int, problem: str) -> UserError:
    return UserError(f"{path}: record {number} {problem}; the file is damaged or no TFRecord file")
