"""Reads and writes TFRecord files of `tf.train.Example` records without TensorFlow.

A record is stored as its length (uint64), a checksum of the length, its content, and a checksum of
the content. Checksums are masked CRC-32C (uint32), and all numbers are little-endian.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from conversion.protobuf import message_class
from mtf.base.errors import UserError

_LENGTH, _CHECKSUM, _HEADER = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<QI")

# TensorFlow's example.proto; its map of features is encoded as a repeated entry.
_Example = message_class(
    "mtf.example",
    {
        "BytesList": {1: "repeated bytes value"},
        "FloatList": {1: "repeated float value"},
        "Int64List": {1: "repeated int64 value"},
        "Feature": {
            1: "BytesList bytes_list",
            2: "FloatList float_list",
            3: "Int64List int64_list",
        },
        "Entry": {1: "string key", 2: "Feature value"},
        "Features": {1: "repeated Entry feature"},
        "Example": {1: "Features features"},
    },
)

Feature = np.ndarray | list[bytes]


def masked_crc32c(content: bytes) -> int:
    """Returns the masked CRC-32C of `content`, which is TFRecord's checksum."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Writes a TFRecord file."""
    with path.open("wb") as file:
        for record in records:
            for content in (_LENGTH.pack(len(record)), record):
                file.write(content + _CHECKSUM.pack(masked_crc32c(content)))


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of a file; raises UserError if it is truncated or a checksum is wrong."""
    with path.open("rb") as file:
        for number in itertools.count():
            header = file.read(_HEADER.size)
            if not header:
                return
            if len(header) < _HEADER.size:
                raise _damaged(path, number, "is truncated")
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[: _LENGTH.size]) != checksum:
                raise _damaged(path, number, "has a length that does not match its checksum")
            content = file.read(length + _CHECKSUM.size)
            if len(content) < length + _CHECKSUM.size:
                raise _damaged(path, number, "is truncated")
            record = content[:length]
            if masked_crc32c(record) != _CHECKSUM.unpack_from(content, length)[0]:
                raise _damaged(path, number, "has content that does not match its checksum")
            yield record


def count_records(path: Path) -> int:
    """Returns the number of records in a file; reads only their lengths."""
    size, position, number = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise _damaged(path, number, "is truncated")
            position += _HEADER.size + _HEADER.unpack(header)[0] + _CHECKSUM.size
            number += 1
    return number


def _damaged(path: Path, number: int, problem: str) -> UserError:
    return UserError(
        f"{path}: record {number} {problem}; the file is damaged or not a TFRecord file"
    )


def encode_example(example: Mapping[str, Any]) -> bytes:
    """Serializes a tf.train.Example whose values are texts, float32 arrays or lists of integers."""
    message = _Example()
    for name, value in example.items():
        feature = message.features.feature.add(key=name).value
        if isinstance(value, str):
            feature.bytes_list.value.append(value.encode("utf-8", errors="replace"))
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            feature.float_list.value.extend(value.tolist())
        else:
            feature.int64_list.SetInParent()  # sets the field even if the list is empty
            feature.int64_list.value.extend(np.asarray(value, np.int64).tolist())
    return message.SerializeToString()


def parse_example(record: bytes) -> dict[str, Feature]:
    """Returns a dict that maps each feature to an int64 or float32 array, or to a list of bytes."""
    features: dict[str, Feature] = {}
    for entry in _Example.FromString(record).features.feature:
        feature = entry.value
        if feature.HasField("int64_list"):
            features[entry.key] = np.array(feature.int64_list.value, np.int64)
        elif feature.HasField("float_list"):
            features[entry.key] = np.array(feature.float_list.value, np.float32)
        else:
            features[entry.key] = list(feature.bytes_list.value)
    return features
