"""TFRecords without TensorFlow. `tests/seqio` compares with TensorFlow itself."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data.seqio.tfrecord import (
    count_records,
    encode_example,
    masked_crc32c,
    parse_example,
    read_records,
    write_records,
)

# CRC-32C's check value (RFC 3720 names the polynomial), masked as TFRecord's description has it.
CHECK = 0xE3069283
MASKED_CHECK = (((CHECK >> 15) | (CHECK << 17)) + 0xA282EAD8) & 0xFFFFFFFF

# features { feature { key: "a" value { int64_list { value: [1, 300, -1] } } } }, by hand; then "b"
# is a float_list of 0.5 and "c" a bytes_list of "hi" and "".
INT64 = bytes([0x1A, 15, 0x0A, 13, 1, 0xAC, 2, *[0xFF] * 9, 1])
FLOAT = bytes([0x12, 6, 0x0A, 4, *struct.pack("<f", 0.5)])
TEXT = bytes([0x0A, 6, 0x0A, 2, *b"hi", 0x0A, 0])


def entry(name: str, feature: bytes) -> bytes:
    content = bytes([0x0A, 1, *name.encode(), 0x12, len(feature)]) + feature
    return bytes([0x0A, len(content)]) + content


FEATURES = entry("a", INT64) + entry("b", FLOAT) + entry("c", TEXT)
EXAMPLE = bytes([0x0A, len(FEATURES)]) + FEATURES


def write(path: Path, records: list[bytes]) -> Path:
    write_records(path, records)
    return path


def test_checksums() -> None:
    assert masked_crc32c(b"123456789") == MASKED_CHECK


def test_the_frame_of_a_record(tmp_path: Path) -> None:
    length = struct.pack("<Q", 9)
    expected = length + struct.pack("<I", masked_crc32c(length))
    expected += b"123456789" + struct.pack("<I", MASKED_CHECK)
    assert write(tmp_path / "a", [b"123456789"]).read_bytes() == expected


def test_an_example_is_parsed() -> None:
    example = parse_example(EXAMPLE)
    assert list(example) == ["a", "b", "c"]
    assert np.asarray(example["a"]).tolist() == [1, 300, -1]
    assert np.asarray(example["b"]).tolist() == [0.5]
    assert example["c"] == [b"hi", b""]


def test_an_example_is_encoded() -> None:
    values = {"a": [1, 300, -1], "b": np.array([0.5], np.float32), "c": "hi"}
    text = bytes([0x0A, 4, 0x0A, 2, *b"hi"])
    features = entry("a", INT64) + entry("b", FLOAT) + entry("c", text)
    assert encode_example(values) == bytes([0x0A, len(features)]) + features
    empty = parse_example(encode_example({"a": [], "c": ""}))
    assert np.asarray(empty["a"]).tolist() == [] and np.asarray(empty["a"]).dtype == np.int64
    assert empty["c"] == [b""]


def test_records_are_read_and_damage_is_found(tmp_path: Path) -> None:
    records = [EXAMPLE[: 3 + i % 20] for i in range(1300)]
    path = write(tmp_path / "a.tfrecord", records)
    assert list(read_records(path)) == records and count_records(path) == 1300
    content = bytearray(path.read_bytes())
    content[12 + 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.tfrecord: record 0 has content that does not match"):
        list(read_records(path))
    path.write_bytes(write(path, records[:3]).read_bytes()[:-1])
    with pytest.raises(UserError, match=r"a\.tfrecord: record 2 is truncated"):
        list(read_records(path))
