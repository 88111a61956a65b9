"""Packing: several examples in a row, none lost and none split; and rows to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtf.data.examples import Cursor, Example

Row = list[Example]
Batch = dict[str, np.ndarray]

# From 4 to 8 rows gain 2-3% for examples of half a row, and from 8 to 16 again as much; but all of
# them are filled before the first row closes.
NUM_OPEN_ROWS = 8


@dataclass
class OpenRow:
    """A row that may take further examples, and the cursors that they were read from."""

    examples: Row = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    num_inputs: int = 0
    num_targets: int = 0

    def add(self, example: Example, cursor: Cursor) -> None:
        """Appends an example; whether it fits is the packer's business."""
        self.examples.append(example)
        self.cursors.append(cursor)
        self.num_inputs += len(example.inputs)
        self.num_targets += len(example.targets)


class Packer:
    """Puts each example into the first open row that has room for it (first fit).

    Where none has, and `NUM_OPEN_ROWS` are open, the fullest one is closed. So rows close soon
    after their examples were read, and what waits is small. Without packing every example is a row.

    Attributes:
      open_rows: rows that wait, oldest first.
    """

    def __init__(self, task_feature_lengths: Mapping[str, int], pack: bool):
        self.open_rows: list[OpenRow] = []
        self._inputs_length = task_feature_lengths["inputs"]
        self._targets_length = task_feature_lengths["targets"]
        self._pack = pack

    def add(self, example: Example, cursor: Cursor = ()) -> Row | None:
        """Takes an example that fits an empty row; returns the row that is closed by it, if any."""
        for position, row in enumerate(self.open_rows):
            if (
                row.num_inputs + len(example.inputs) <= self._inputs_length
                and row.num_targets + len(example.targets) <= self._targets_length
            ):
                row.add(example, cursor)
                return self.open_rows.pop(position).examples if self._fill(row) >= 1 else None
        row = OpenRow()
        row.add(example, cursor)
        if not self._pack or self._fill(row) >= 1:
            return row.examples
        self.open_rows.append(row)
        if len(self.open_rows) <= NUM_OPEN_ROWS:
            return None
        fullest = max(range(NUM_OPEN_ROWS), key=lambda i: self._fill(self.open_rows[i]))
        return self.open_rows.pop(fullest).examples

    def flush(self) -> list[Row]:
        """Closes and returns all open rows."""
        rows = [row.examples for row in self.open_rows]
        self.open_rows = []
        return rows

    def _fill(self, row: OpenRow) -> float:
        """Returns the part that is taken of the feature with the least room."""
        return max(row.num_inputs / self._inputs_length, row.num_targets / self._targets_length)


def to_batch(
    rows: Sequence[Row], task_feature_lengths: Mapping[str, int], num_rows: int, pack: bool
) -> Batch:
    """Returns T5X's features of `rows`, each (num_rows, length) int32.

    `decoder_input_tokens` are the targets shifted right within each example. With `pack` there are
    segment ids (from 1; 0 is padding) and positions (from 0 in each example) too. Rows beyond
    `rows` are padding, with zero weights.
    """
    inputs_shape = (num_rows, task_feature_lengths["inputs"])
    targets_shape = (num_rows, task_feature_lengths["targets"])
    batch = {"encoder_input_tokens": np.zeros(inputs_shape, np.int32)}
    names = ["decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"]
    if pack:
        names += ["decoder_segment_ids", "decoder_positions"]
        for name in ("encoder_segment_ids", "encoder_positions"):
            batch[name] = np.zeros(inputs_shape, np.int32)
    for name in names:
        batch[name] = np.zeros(targets_shape, np.int32)
    for index, row in enumerate(rows):
        inputs_start = targets_start = 0
        for segment, (inputs, targets) in enumerate(row, start=1):
            source = slice(inputs_start, inputs_start + len(inputs))
            target = slice(targets_start, targets_start + len(targets))
            batch["encoder_input_tokens"][index, source] = inputs
            batch["decoder_input_tokens"][index, targets_start + 1 : target.stop] = targets[:-1]
            batch["decoder_target_tokens"][index, target] = targets
            batch["decoder_loss_weights"][index, target] = 1
            if pack:
                batch["encoder_segment_ids"][index, source] = segment
                batch["encoder_positions"][index, source] = np.arange(len(inputs))
                batch["decoder_segment_ids"][index, target] = segment
                batch["decoder_positions"][index, target] = np.arange(len(targets))
            inputs_start, targets_start = source.stop, target.stop
    return batch
