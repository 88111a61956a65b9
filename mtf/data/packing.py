"""Packs several examples into a row, without splitting or dropping any, and rows into arrays.

Training packs a stream by best fit into a few open rows (`Packer`). Scoring knows all examples and
packs them by first fit (`first_fit`). Grain's `grain.experimental.BestFitPackIterDataset` does not
replace this: it closes all rows of a batch at once, and packs the open batch again on resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtf.data.examples import Cursor, Example

Row = list[Example]
HostBatch = dict[str, np.ndarray]

# The lengths of trimmed batches: parts of the full length, rounded up. Each pair of lengths is a
# program to compile. With these parts, the longest row of a batch is padded by at most about 40%,
# unless it is shorter than the shortest length.
_TRIMMED_PARTS = (2**-1.5, 2**-1.0, 2**-0.5, 1.0)
_TRIMMED_MULTIPLE = 8

# With T0's prompts at 1024/256 (social_i_qa, piqa, trec, rotten_tomatoes and xsum), 4 open rows
# fill 96.4% of the inputs, 8 rows 98.3% and 16 rows 99.2%; but more open rows delay the first row.
# SeqIO's packing in sequence (1 open row) fills 81.7%, first fit into 8 rows 97.4%.
NUM_OPEN_ROWS = 8


@dataclass
class OpenRow:
    """A row that may take further examples, and the cursors of its examples.

    After a resume, `earlier` reads the examples that the row had before. It is called only when the
    row is closed, because packing needs only their lengths.
    """

    examples: Row = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    num_inputs: int = 0
    num_targets: int = 0
    earlier: Callable[[], Row] = list

    def add(self, example: Example, cursor: Cursor) -> None:
        """Appends an example, which must fit."""
        self.examples.append(example)
        self.cursors.append(cursor)
        self.num_inputs += len(example.inputs)
        self.num_targets += len(example.targets)


class Packer:
    """Adds each example to the fullest open row that has room for it (best fit).

    If no row has room and `NUM_OPEN_ROWS` are open, the fullest one is closed. Without `pack`, each
    example is a row.

    Attributes:
      open_rows: open rows, oldest first.
    """

    def __init__(self, task_feature_lengths: Mapping[str, int], pack: bool):
        self.open_rows: list[OpenRow] = []
        self._inputs_length = task_feature_lengths["inputs"]
        self._targets_length = task_feature_lengths["targets"]
        self._pack = pack

    def add(self, example: Example, cursor: Cursor = ()) -> Row | None:
        """Adds an example that fits an empty row; returns the row that this closes, if any."""
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

    def _fill(self, row: OpenRow) -> int:
        """Returns the fill of the fuller feature; it is at most inputs length * targets length."""
        return max(row.num_inputs * self._targets_length, row.num_targets * self._inputs_length)

    def _close(self, row: OpenRow) -> Row:
        self.open_rows = [other for other in self.open_rows if other is not row]
        return [*row.earlier(), *row.examples]


def first_fit(
    inputs: np.ndarray, targets: np.ndarray, inputs_length: int, targets_length: int
) -> list[list[int]]:
    """Returns the indices of each row's examples: the longest first, in the first row with room.

    `inputs` and `targets` are numbers of tokens, (examples,), at most the lengths of a row.
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
    """Concatenates the sequences of each row, and pads rows to `length` and their number.

    Returns ids, segment ids (from 1; 0 is padding) and positions (from 0 in each sequence), each
    (num_rows, length) int32.
    """
    ids, segments, positions = np.zeros((3, num_rows, length), np.int32)
    counting = np.arange(length)
    for i, row in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(row, start=1):
            place = slice(start, start + len(sequence))
            ids[i, place] = sequence
            segments[i, place] = segment
            positions[i, place] = counting[: len(sequence)]
            start = place.stop
    return ids, segments, positions


def shifted_right(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns ids from `lay_out` with each sequence shifted right after a zero."""
    shifted = np.zeros_like(ids)
    np.multiply(ids[:, :-1], positions[:, 1:] > 0, out=shifted[:, 1:])
    return shifted


def to_batch(
    rows: Sequence[Row], task_feature_lengths: Mapping[str, int], num_rows: int, pack: bool
) -> HostBatch:
    """Returns T5X's features of `rows`, each (num_rows, length) int32.

    `decoder_input_tokens` are the targets shifted right within each example. With `pack`, segment
    ids and positions are added. Rows beyond `rows` are padding, with zero weights.
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
    """Returns a batch without the columns of padding after its longest row.

    The encoder's and the decoder's features are each cut to one of four lengths: the full length,
    or that divided by √2, 2 or 2√2, rounded up to a multiple of 8. So there are few shapes to
    compile.
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
