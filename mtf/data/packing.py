"""Packs examples into rows without splitting or dropping them, and converts rows to arrays.

For training, `Packer` packs a stream of examples by best fit into a few open rows. For scoring, all
examples are known in advance, and `first_fit` packs them by first fit. Grain's
`grain.experimental.BestFitPackIterDataset` is not used, because it closes all rows of a batch
together, and packs the open batch again when a run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mtf.data.examples import Cursor, Example

# The examples of a row.
Row = list[Example]
HostBatch = dict[str, np.ndarray]

# Lengths of trimmed batches, as fractions of the full length. The model is compiled once for each
# pair of an encoder length and a decoder length. With these fractions, padding adds at most about
# 40% to the longest row of a batch, unless that row is shorter than the shortest length.
_TRIMMED_PARTS = (2**-1.5, 2**-1.0, 2**-0.5, 1.0)
_TRIMMED_MULTIPLE = 8

# On T0's prompts (social_i_qa, piqa, trec, rotten_tomatoes and xsum), with 1024 inputs and 256
# targets, 4 open rows fill 96.4% of the input positions, 8 rows fill 98.3%, and 16 rows fill 99.2%.
# However, more open rows delay the first row. SeqIO's packing, which has only one open row, fills
# 81.7% of the input positions, and first fit into 8 rows fills 97.4%.
NUM_OPEN_ROWS = 8


@dataclass
class OpenRow:
    """A row to which examples may still be added, with the cursors of its examples.

    In a resumed run, `earlier` reads the examples that the row contained when the state was stored.
    It is called only when the row is closed, because packing needs only the examples' lengths.
    """

    examples: Row = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    num_inputs: int = 0
    num_targets: int = 0
    earlier: Callable[[], Row] = list

    def add(self, example: Example, cursor: Cursor) -> None:
        """Appends an example, which must fit into the row."""
        self.examples.append(example)
        self.cursors.append(cursor)
        self.num_inputs += len(example.inputs)
        self.num_targets += len(example.targets)


class Packer:
    """Adds each example to the fullest open row that has room for it (best fit).

    A full row is closed. If no row has room and `NUM_OPEN_ROWS` rows are open, the fullest of them
    is closed. If `pack` is False, each example becomes a row.

    Attributes:
      open_rows: the open rows, from the oldest to the newest.
    """

    def __init__(self, task_feature_lengths: Mapping[str, int], pack: bool):
        self.open_rows: list[OpenRow] = []
        self._inputs_length = task_feature_lengths["inputs"]
        self._targets_length = task_feature_lengths["targets"]
        self._pack = pack

    def add(self, example: Example, cursor: Cursor = ()) -> Row | None:
        """Adds an example, which must fit into a row; returns the row that this closes, or None."""
        inputs_room = self._inputs_length - len(example.inputs)
        targets_room = self._targets_length - len(example.targets)
        fitting = [
            row
            for row in self.open_rows
            if row.num_inputs <= inputs_room and row.num_targets <= targets_room
        ]
        if fitting:
            row = max(fitting, key=self._fill)
        else:
            row = OpenRow()
            self.open_rows.append(row)
        row.add(example, cursor)
        if not self._pack or self._fill(row) >= self._inputs_length * self._targets_length:
            return self._close(row)
        if len(self.open_rows) > NUM_OPEN_ROWS:
            return self._close(max(self.open_rows[:-1], key=self._fill))
        return None

    def flush(self) -> list[Row]:
        """Closes and returns all open rows."""
        return [self._close(row) for row in self.open_rows.copy()]

    def get_state(self) -> list[Any]:
        """Returns the examples of the open rows as lists of token ids."""
        return [[[ids.tolist() for ids in e] for e in row.examples] for row in self.open_rows]

    def set_state(self, state: list[Any]) -> None:
        """Restores the open rows from the result of `get_state`."""
        self.open_rows = []
        for examples in state:
            row = OpenRow()
            for ids in examples:
                row.add(Example(*(np.array(feature, np.int32) for feature in ids)), ())
            self.open_rows.append(row)

    def _fill(self, row: OpenRow) -> int:
        """Returns the fill ratio of the fuller feature, times inputs length * targets length."""
        return max(row.num_inputs * self._targets_length, row.num_targets * self._inputs_length)

    def _close(self, row: OpenRow) -> Row:
        self.open_rows = [other for other in self.open_rows if other is not row]
        return [*row.earlier(), *row.examples]


def first_fit(
    inputs: np.ndarray, targets: np.ndarray, inputs_length: int, targets_length: int
) -> list[list[int]]:
    """Packs each example, longest first, into the first row that has room for it.

    Args:
      inputs: array with the number of input tokens of each example, at most `inputs_length`.
      targets: array with the number of target tokens of each example, at most `targets_length`.
      inputs_length: number of input tokens that fit into a row.
      targets_length: number of target tokens that fit into a row.

    Returns a list that contains, for each row, the indices of its examples.
    """
    order = np.argsort(-(inputs / inputs_length + targets / targets_length), kind="stable")
    inputs_left = np.full(len(order), inputs_length)
    targets_left = np.full(len(order), targets_length)
    rows: list[list[int]] = []
    for i in order.tolist():
        # The first empty row always has room.
        row = int(((inputs_left >= inputs[i]) & (targets_left >= targets[i])).argmax())
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        inputs_left[row] -= inputs[i]
        targets_left[row] -= targets[i]
    return rows


def lay_out(
    rows: Sequence[Sequence[Sequence[int] | np.ndarray]], num_rows: int, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenates the sequences of each row, and pads to `num_rows` rows of `length` ids each.

    Returns ids, segment ids and positions, as int32 arrays of shape (num_rows, length). Segment ids
    start at 1 (0 marks padding), and positions start at 0 in each sequence.
    """
    ids, segments, positions = np.zeros((3, num_rows, length), np.int32)
    counting = np.arange(length)
    for i, row in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(row, start=1):
            stop = start + len(sequence)
            ids[i, start:stop] = sequence
            segments[i, start:stop] = segment
            positions[i, start:stop] = counting[: len(sequence)]
            start = stop
    return ids, segments, positions


def shifted_right(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Shifts each sequence of ids from `lay_out` right by one, and puts 0 before its first id."""
    shifted = np.zeros_like(ids)
    np.multiply(ids[:, :-1], positions[:, 1:] > 0, out=shifted[:, 1:])
    return shifted


def to_batch(
    rows: Sequence[Row], task_feature_lengths: Mapping[str, int], num_rows: int, pack: bool
) -> HostBatch:
    """Converts rows to T5X's features, which are int32 arrays of shape (num_rows, length).

    `decoder_input_tokens` are the targets, shifted right within each example. If `pack` is True,
    there are also segment ids and positions. If there are fewer than `num_rows` rows, padding rows
    with loss weights of 0 are added.
    """
    (inputs, *encoder), (targets, *decoder) = (
        lay_out([[e[i] for e in row] for row in rows], num_rows, task_feature_lengths[name])
        for i, name in enumerate(("inputs", "targets"))
    )
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": shifted_right(targets, decoder[1]),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (decoder[0] > 0).astype(np.int32),
    }
    if pack:
        for name, (segments, positions) in (("encoder", encoder), ("decoder", decoder)):
            batch |= {f"{name}_segment_ids": segments, f"{name}_positions": positions}
    return batch


def trimmed(batch: HostBatch) -> HostBatch:
    """Removes most of the padding beyond the longest row of a batch.

    To limit the number of shapes to compile, the features of the encoder and those of the
    decoder are each cut to one of four lengths. These are the full length, and the full length
    divided by √2, 2 or 2√2 and rounded up to a multiple of 8.
    """
    sides = {name: name.partition("_")[0] for name in batch}
    lengths = {}
    for side in set(sides.values()):
        features = [batch[name] for name in batch if sides[name] == side]
        used = np.flatnonzero(np.any([(feature != 0).any(0) for feature in features], axis=0))
        longest, full = used[-1] + 1 if len(used) else 1, features[0].shape[1]
        steps = (math.ceil(part * full / _TRIMMED_MULTIPLE) for part in _TRIMMED_PARTS)
        choices = (min(number * _TRIMMED_MULTIPLE, full) for number in steps)
        lengths[side] = next(length for length in choices if length >= longest)
    return {name: feature[:, : lengths[sides[name]]] for name, feature in batch.items()}
