"""Rows contain every example once, within their lengths, with little padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtf.inference.rows import MAX_TARGET_TOKENS, Item, Packed, make_items, pack
from mtf.models.settings import T5Config

SMALL = T5Config(
    vocab_size=32128,
    emb_dim=512,
    num_heads=6,
    head_dim=64,
    num_encoder_layers=8,
    num_decoder_layers=8,
    mlp_dim=1024,
)


def packed(items: list[Item], batch_size: int = 32, parts: int = 1) -> Packed:
    return pack(items, SMALL, batch_size=batch_size, max_inputs_length=1024, parts=parts)


def item(example: int, num_inputs: int, *targets: int) -> Item:
    slots = [[i] for i in range(len(targets))]
    return Item(example, [5] * num_inputs, [[7] * n for n in targets], slots)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 1024), st.lists(st.integers(1, 100), min_size=1, max_size=5)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 40),
    st.sampled_from([1, 2, 8]),
)
def test_rows_hold_every_item_once(
    lengths: list[tuple[int, list[int]]], batch_size: int, parts: int
) -> None:
    items = [item(i, inputs, *targets) for i, (inputs, targets) in enumerate(lengths)]
    result = packed(items, batch_size, parts)
    assert sorted(i.example for row in result.rows for i in row) == list(range(len(items)))
    assert all(sum(len(i.inputs) for i in row) <= result.inputs_length for row in result.rows)
    assert all(
        sum(i.num_target_tokens for i in row) <= result.targets_length for row in result.rows
    )
    assert result.batch_rows % parts == 0
    # A batch is not much larger than one of unpacked rows, or has one row per part of the mesh.
    longest = max(inputs for inputs, _ in lengths)
    most = batch_size * max(16, 1.5 * longest + 16)
    assert result.batch_rows * result.inputs_length <= max(most, parts * result.inputs_length)
    assert result.targets_length <= MAX_TARGET_TOKENS


@pytest.mark.parametrize(("inputs", "targets"), [(90, 4), (46, 18), (120, 100), (400, 10)])
def test_little_of_a_batch_is_padding(inputs: int, targets: int) -> None:
    """Examples whose lengths vary as in real data fill at least 70 % of the rows."""
    rng = np.random.default_rng(0)
    spread = rng.lognormal(0.0, 0.35, (2, 100))
    lengths = [
        (min(1024, max(1, round(inputs * a))), max(1, round(targets * b)))
        for a, b in zip(*spread, strict=True)
    ]
    result = packed([item(i, a, b) for i, (a, b) in enumerate(lengths)])
    num_batches = -(-len(result.rows) // result.batch_rows)
    place = num_batches * result.batch_rows * (result.inputs_length + result.targets_length)
    assert sum(a + b for a, b in lengths) / place > 0.7


def test_one_long_example_makes_no_row_longer_than_the_limit() -> None:
    others = [item(i, 40, 150) for i in range(1, 1000)]
    assert packed([item(0, 1024, 300), *others]).targets_length <= MAX_TARGET_TOKENS


def test_targets_too_many_for_a_row_are_several_items() -> None:
    targets = [[7] * n for n in (600, 400, 300, 400, 700)]
    items = make_items(3, [5, 6], targets)
    assert [i.slots for i in items] == [[[0], [1, 3]], [[2], [4]]]
    assert all(i.example == 3 and i.num_target_tokens <= MAX_TARGET_TOKENS for i in items)
