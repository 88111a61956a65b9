"""Records and descriptions, there and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.base.errors import UserError
from mtf.data.cache.format import (
    CacheInfo,
    RecordCodec,
    SplitInfo,
    feature_dtypes,
    read_json,
    write_json,
)

ids = st.lists(st.integers(0, 31_999), max_size=50)


@given(inputs=ids, targets=ids, number=st.integers(0, 2**31 - 1), correct=st.booleans())
def test_a_record_is_what_was_written(
    inputs: list[int], targets: list[int], number: int, correct: bool
) -> None:
    example = {
        "inputs": np.array(inputs),
        "targets": np.array(targets),
        "idx": np.array([number, 3]),
        "is_correct": np.array([correct]),
        "weight": np.array([0.25]),
    }
    codec = RecordCodec(feature_dtypes("rank", 32_100))
    decoded = codec.decode(codec.encode(example))
    assert {name: value.tolist() for name, value in decoded.items()} == {
        name: value.tolist() for name, value in example.items()
    }


def test_ids_take_two_bytes_where_the_vocabulary_allows_it() -> None:
    example = {"targets": np.array([65_535, 7])}
    assert len(RecordCodec(feature_dtypes("documents", 65_536)).encode(example)) == 4
    large = RecordCodec(feature_dtypes("documents", 250_100))
    record = large.encode({"targets": np.array([250_099])})
    assert len(record) == 4 and large.decode(record)["targets"].tolist() == [250_099]


def test_counts_of_two_parts_are_the_counts_of_the_whole() -> None:
    lengths = [1, 5, 5, 2048, 2049, 5000]
    whole, parts = SplitInfo(), (SplitInfo(), SplitInfo())
    for number, length in enumerate(lengths):
        for split in (whole, parts[number % 2]):
            split.count([{"inputs": range(length)}])
    parts[0].add(parts[1])
    assert parts[0] == whole
    assert whole.num_examples == 6 and whole.num_tokens == {"inputs": sum(lengths)}
    assert whole.max_tokens == {"inputs": 5000}
    assert [whole.num_longer("inputs", n) for n in (4, 5, 2047, 2048, 6000)] == [5, 3, 3, 2, 0]


def test_a_description_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    write_json(path, CacheInfo("array_record", "byte+0", "byt5", 259, 0))
    assert read_json(path, CacheInfo).vocab_size == 259
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 7'))
    with pytest.raises(UserError, match=r"cache\.json has version 7 .* reads version 1"):
        read_json(path, CacheInfo)
    path.write_text("{}")
    with pytest.raises(
        UserError, match=r"cache\.json is damaged; expected a JSON file of a token cache"
    ):
        read_json(path, CacheInfo)
