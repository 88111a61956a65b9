"""Packing: nothing lost, nothing split, and T5X's features of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.data.examples import Example
from mtf.data.packing import NUM_OPEN_ROWS, Packer, Row, to_batch, trimmed

LENGTHS = {"inputs": 16, "targets": 8}


def example(number: int, num_inputs: int, num_targets: int) -> Example:
    return Example(np.full(num_inputs, number, np.int32), np.full(num_targets, number, np.int32))


def pack(sizes: list[tuple[int, int]], pack: bool = True) -> list[Row]:
    packer = Packer(LENGTHS, pack)
    rows = []
    for number, (num_inputs, num_targets) in enumerate(sizes, start=1):
        row = packer.add(example(number, num_inputs, num_targets))
        assert len(packer.open_rows) <= NUM_OPEN_ROWS
        rows += [row] if row is not None else []
    return rows + packer.flush()


sizes_that_fit = st.lists(st.tuples(st.integers(0, 16), st.integers(1, 8)), max_size=60)


@given(sizes=sizes_that_fit)
def test_every_example_is_in_one_row_and_whole(sizes: list[tuple[int, int]]) -> None:
    rows = pack(sizes)
    found = sorted(
        (int(targets[0]), len(inputs), len(targets)) for row in rows for inputs, targets in row
    )
    assert found == [(i, *size) for i, size in enumerate(sizes, start=1)]
    for row in rows:
        assert sum(len(inputs) for inputs, _ in row) <= LENGTHS["inputs"]
        assert sum(len(targets) for _, targets in row) <= LENGTHS["targets"]


def test_an_example_goes_into_the_fullest_row_with_room() -> None:
    rows = pack([(9, 1), (10, 1), (6, 1), (7, 1)])
    assert [[int(targets[0]) for _, targets in row] for row in rows] == [[2, 3], [1, 4]]
    # By targets, of which there are half as many: the first row is fuller.
    rows = pack([(2, 6), (10, 3), (1, 2), (6, 1)])
    assert [[int(targets[0]) for _, targets in row] for row in rows] == [[1, 3], [2, 4]]


def test_the_fullest_row_is_closed_where_none_has_room() -> None:
    packer = Packer(LENGTHS, True)
    for number in range(1, NUM_OPEN_ROWS + 1):
        assert packer.add(example(number, 12 if number == 3 else 10, 1)) is None
    row = packer.add(example(99, 13, 1))
    assert row is not None
    assert [int(targets[0]) for _, targets in row] == [3]


def test_without_packing_an_example_is_a_row() -> None:
    assert [len(row) for row in pack([(3, 1), (2, 2), (1, 1)], pack=False)] == [1, 1, 1]


def test_features_of_a_packed_row() -> None:
    rows = [
        [
            Example(np.array([5, 6, 1]), np.array([7, 1])),
            Example(np.array([8, 1]), np.array([9, 10, 1])),
        ]
    ]
    batch = to_batch(rows, {"inputs": 6, "targets": 7}, num_rows=2, pack=True)
    expected = {
        "encoder_input_tokens": [5, 6, 1, 8, 1, 0],
        "encoder_segment_ids": [1, 1, 1, 2, 2, 0],
        "encoder_positions": [0, 1, 2, 0, 1, 0],
        "decoder_target_tokens": [7, 1, 9, 10, 1, 0, 0],
        "decoder_input_tokens": [0, 7, 0, 9, 10, 0, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 0, 0],
        "decoder_segment_ids": [1, 1, 2, 2, 2, 0, 0],
        "decoder_positions": [0, 1, 0, 1, 2, 0, 0],
    }
    assert {name: values[0].tolist() for name, values in batch.items()} == expected
    assert all(not values[1].any() for values in batch.values())  # a row of padding
    assert all(values.dtype == np.int32 for values in batch.values())


def test_features_without_packing() -> None:
    rows = [[Example(np.array([5, 1]), np.array([6, 7, 1]))]]
    batch = to_batch(rows, {"inputs": 3, "targets": 4}, num_rows=1, pack=False)
    assert {name: values[0].tolist() for name, values in batch.items()} == {
        "encoder_input_tokens": [5, 1, 0],
        "decoder_target_tokens": [6, 7, 1, 0],
        "decoder_input_tokens": [0, 6, 7, 0],
        "decoder_loss_weights": [1, 1, 1, 0],
    }


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    # 224 / √2 = 158.4, and 224 / 2√2 = 79.2.
    ("longest", "length"),
    [(224, 224), (161, 224), (160, 160), (113, 160), (112, 112), (81, 112), (80, 80), (1, 80)],
)
def test_trimmed_inputs(longest: int, length: int, is_packed: bool) -> None:
    rows = [
        [Example(np.full(size, 7, np.int32), np.array([9, 1], np.int32))] for size in (longest, 1)
    ]
    full = to_batch(rows, {"inputs": 224, "targets": 16}, num_rows=3, pack=is_packed)
    batch = trimmed(full)
    assert batch.keys() == full.keys()
    for name, feature in batch.items():
        assert feature.shape == (3, length if name.startswith("encoder") else 8)
        np.testing.assert_array_equal(feature, full[name][:, : feature.shape[1]])
        assert not full[name][:, feature.shape[1] :].any()


def test_trimmed_targets_are_at_most_the_full_length() -> None:
    for full, num_targets, expected in ((5, 1, 5), (12, 8, 8), (12, 9, 12), (30, 17, 24)):
        rows = [[Example(np.array([1], np.int32), np.full(num_targets, 9, np.int32))]]
        batch = to_batch(rows, {"inputs": 8, "targets": full}, num_rows=1, pack=False)
        assert trimmed(batch)["decoder_target_tokens"].shape == (1, expected)
