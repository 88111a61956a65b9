"""Packing: several examples in a row, none lost and none split; and rows to batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtf.data.examples import Cursor, Example

Row = list[Example]
HostBatch = dict[str, np.ndarray]

# On T0's prompts at 1024/256 (social_i_qa, piqa, trec, rotten_tomatoes and xsum), 4 open rows fill
# 96.4% of the inputs, 8 98.3% and 16 99.2%; but all of them are filled before the first row closes.
# One, which is packing in sequence as SeqIO has it, fills 81.7%; first fit into 8 97.4%.
NUM_OPEN_ROWS = 8


@dataclass
class OpenRow:
    """A row that may take further examples, and the cursors that they were read from.

    Of a row that is returned to, `earlier` reads the examples that it had then. That is done when
    it is closed: to place further examples their lengths are enough.
    """

    examples: Row = field(default_factory=list)
    cursors: list[Cursor] = field(default_factory=list)
    num_inputs: int = 0
    num_targets: int = 0
    earlier: Callable[[], Row] = list

    def add(self, example: Example, cursor: Cursor) -> None:
        """Appends an example; whether it fits is the packer's business."""
        self.examples.append(example)
        self.cursors.append(cursor)
        self.num_inputs += len(example.inputs)
        self.num_targets += len(example.targets)

    def all_examples(self) -> Row:
        """Returns the examples, the earlier ones first."""
        return [*self.earlier(), *self.examples]


class Packer:
    """Puts each example into the fullest open row that has room for it (best fit).

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
        inputs_room = self._inputs_length - len(example.inputs)
        targets_room = self._targets_length - len(example.targets)
        best, best_fill = None, -1
        for row in self.open_rows:
            if row.num_inputs <= inputs_room and row.num_targets <= targets_room:
                fill = self._fill(row)
                if fill > best_fill:
                    best, best_fill = row, fill
        if best is not None:
            best.add(example, cursor)
            return self._close(best) if self._fill(best) >= self._full else None
        row = OpenRow()
        row.add(example, cursor)
        if not self._pack or self._fill(row) >= self._full:
            return row.examples
        self.open_rows.append(row)
        if len(self.open_rows) <= NUM_OPEN_ROWS:
            return None
        return self._close(max(self.open_rows[:-1], key=self._fill))

    def flush(self) -> list[Row]:
        """Closes and returns all open rows."""
        rows = [row.all_examples() for row in self.open_rows]
        self.open_rows = []
        return rows

    @property
    def _full(self) -> int:
        return self._inputs_length * self._targets_length

    def _fill(self, row: OpenRow) -> int:
        """Returns how much is taken of the feature with the least room, in parts of `_full`."""
        return max(row.num_inputs * self._targets_length, row.num_targets * self._inputs_length)

    def _close(self, row: OpenRow) -> Row:
        self.open_rows = [other for other in self.open_rows if other is not row]
        return row.all_examples()


def pack_in_sequence(
    examples: Iterable[Example], task_feature_lengths: Mapping[str, int]
) -> list[Row]:
    """Returns rows of which each takes examples until one does not fit, as SeqIO packs.

    For comparison only.
    """
    rows: list[Row] = []
    row = OpenRow()
    for example in examples:
        if row.examples and (
            row.num_inputs + len(example.inputs) > task_feature_lengths["inputs"]
            or row.num_targets + len(example.targets) > task_feature_lengths["targets"]
        ):
            rows.append(row.examples)
            row = OpenRow()
        row.add(example, ())
    return [*rows, row.examples] if row.examples else rows


def to_batch(
    rows: Sequence[Row], task_feature_lengths: Mapping[str, int], num_rows: int, pack: bool
) -> HostBatch:
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
