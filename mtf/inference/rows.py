"""Packs examples to score into the rows of batches, and chooses the shape of the batches.

As in training, a row can hold several short examples, each of which attends only to itself. All
batches of a call to `pack` have the same shape, so only one compilation is needed. The shape is
chosen so that scoring needs little computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mtf.data.packing import first_fit
from mtf.models.settings import T5Config
from mtf.training.flops import forward_multiplications

# Maximum number of target tokens of an example in one row, unless one target is longer. Further
# rows encode the inputs again, but the cost of self-attention is quadratic in the row length.
MAX_TARGET_TOKENS = 1024
# Maximum length to which rows of inputs are extended to hold more examples.
_MAX_PACKED_LENGTH = 1024
# Shapes are compared on a sample of at most this many items.
_SAMPLE = 128
# A rounder shape is preferred if its cost is at most this many times the lowest cost.
_ENOUGH = 1.08
# Because of memory traffic, attention takes about this many times as long as its arithmetic.
_ATTENTION_COST = 2


class Item(NamedTuple):
    """The inputs of an example, and some or all of its targets.

    Attributes:
      example: number of the example.
      inputs: token ids of the inputs.
      targets: token ids of each distinct target.
      slots: for each distinct target, its indices in the list of the example's targets.
    """

    example: int
    inputs: Sequence[int]
    targets: list[Sequence[int]]
    slots: list[list[int]]

    @property
    def num_target_tokens(self) -> int:
        """The total number of target tokens."""
        return sum(map(len, self.targets))


class Packed(NamedTuple):
    """Items packed into rows.

    Attributes:
      rows: the items in each row.
      inputs_length, targets_length: number of input and target positions in a row.
      batch_rows: number of rows in a batch; the last batch may have unused rows.
    """

    rows: list[list[Item]]
    inputs_length: int
    targets_length: int
    batch_rows: int


def make_items(example: int, inputs: Sequence[int], targets: Sequence[Sequence[int]]) -> list[Item]:
    """Returns one item for an example, or several if its targets do not fit in one row."""
    distinct: dict[tuple[int, ...], list[int]] = {}
    for slot, target in enumerate(targets):
        distinct.setdefault(tuple(target), []).append(slot)
    items: list[Item] = []
    for target, slots in distinct.items():
        if not items or items[-1].num_target_tokens + len(target) > MAX_TARGET_TOKENS:
            items.append(Item(example, inputs, [], []))
        items[-1].targets.append(target)
        items[-1].slots.append(slots)
    return items


def pack(
    items: Sequence[Item], network: T5Config, *, batch_size: int, max_inputs_length: int, parts: int
) -> Packed:
    """Packs items into rows; the lengths of the rows approximately minimize the computation.

    A batch has at most about as many input positions as `batch_size` rows of the longest inputs.
    The number of rows in a batch is a multiple of `parts`.
    """
    inputs = np.array([len(item.inputs) for item in items])
    targets = np.array([item.num_target_tokens for item in items])
    longest = min(rounded_length(int(inputs.max())), max_inputs_length)
    step = -(-len(items) // _SAMPLE)
    scale = len(items) / len(inputs[::step])
    shapes = []
    for inputs_length in _inputs_lengths(longest):
        max_rows = max(1, batch_size * _half_step(longest) // inputs_length // parts) * parts
        for targets_length in _targets_lengths(inputs_length, inputs, targets):
            sample = first_fit(inputs[::step], targets[::step], inputs_length, targets_length)
            num_batches, batch_rows = _batches(round(len(sample) * scale), max_rows, parts)
            lengths = inputs_length, targets_length
            cost = forward_multiplications(network, *lengths, _ATTENTION_COST)
            shapes.append((num_batches * batch_rows * cost, *lengths, max_rows))
    # Take the roundest shape with about the lowest cost, so that similar items get the same shape.
    enough = min(shapes)[0] * _ENOUGH
    _, inputs_length, targets_length, max_rows = min(
        (shape for shape in shapes if shape[0] <= enough),
        key=lambda shape: (_roughness(shape[1]) + _roughness(shape[2]), shape[1:]),
    )
    rows = first_fit(inputs, targets, inputs_length, targets_length)
    batch_rows = _batches(len(rows), max_rows, parts)[1]
    return Packed(
        [[items[i] for i in row] for row in rows], inputs_length, targets_length, batch_rows
    )


def rounded_length(length: int) -> int:
    """Rounds up to a multiple of the larger of 16 and 1/8 of the next power of two."""
    step = max(16, power_of_two(length) // 8)
    return -(-length // step) * step


def power_of_two(n: int) -> int:
    """Returns the smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


def _inputs_lengths(longest: int) -> list[int]:
    """Returns the lengths to try for rows of inputs: `longest` and some larger lengths."""
    lengths = [longest]
    while (more := _half_step(lengths[-1] + 1)) <= _MAX_PACKED_LENGTH:
        lengths.append(more)
    return lengths


def _targets_lengths(inputs_length: int, inputs: np.ndarray, targets: np.ndarray) -> list[int]:
    """Returns the lengths to try for rows of targets, given the length of rows of inputs."""
    longest, balanced = int(targets.max()), inputs_length * targets.sum() / inputs.sum()
    most = max(longest, min(MAX_TARGET_TOKENS, int(targets.sum())))
    tried = (min(most, max(longest, int(balanced * share))) for share in (0.8, 1.1, 1.5))
    return sorted({max(8, _half_step(length)) for length in tried})


def _half_step(length: int) -> int:
    """Rounds a length up to a power of two or to three quarters of a power of two."""
    power = power_of_two(length)
    return 3 * power // 4 if length <= 3 * power // 4 else power


def _roughness(length: int) -> int:
    """Returns 0 for a power of two, 1 for the sum of two powers of two, and 2 otherwise."""
    return min(2, length.bit_count() - 1)


def _batches(num_rows: int, max_rows: int, parts: int) -> tuple[int, int]:
    """Returns the number of batches, and the number of rows in a batch (at most `max_rows`)."""
    num_batches = -(-num_rows // max_rows)
    if num_batches > 3:
        return num_batches, max_rows
    rows_a_part = -(-num_rows // (num_batches * parts))
    return num_batches, min(_half_step(rows_a_part) * parts, max_rows)
