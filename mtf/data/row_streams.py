"""Rows of batches: each row of the global batch is a stream of its own.

Row r takes the units r, r + batch_size, … of a sequence of examples that goes on over all epochs,
each in its own random order (`mtf.data.examples`). So

* the global batch at a step is the same however many processes share it;
* each unit of each epoch belongs to exactly one stream: over all rows, every document or pair is
  used exactly once an epoch, and an epoch need not be a multiple of anything (with fewer units than
  rows, some rows start in later epochs);
* streams run at their own pace, so where rows are packed one stream may begin an epoch a little
  before another has finished the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from mtf.data.examples import Cursor, Example, ExampleSource
from mtf.data.packing import Batch, OpenRow, Packer, Row, to_batch
from mtf.errors import UserError

State = dict[str, Any]


class BatchIterator(Protocol):
    """Batches without end, whose place can be stored and returned to."""

    def __iter__(self) -> BatchIterator: ...

    def __next__(self) -> Batch:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> State:
        """Returns the place after the last batch that was returned, small and fit for JSON."""

    def set_state(self, state: State) -> None:
        """Returns to a place; `state` may join those of several processes."""


class RowStream(Protocol):
    """Makes one row after the other."""

    def next_row(self) -> Row:
        """Returns the examples of the next row."""

    def get_state(self) -> State:
        """Returns the place after the last row."""

    def set_state(self, state: State) -> None:
        """Returns to a place."""


def shard_rows(batch_size: int, shard_id: int, num_shards: int) -> range:
    """Returns which rows of the global batch a process makes.

    Raises:
      UserError: the rows cannot be shared by so many processes.
    """
    if batch_size < 1:
        raise UserError(f"batch_size: {batch_size} is less than 1")
    if batch_size % num_shards:
        raise UserError(f"batch_size: {batch_size} rows cannot be shared by {num_shards} processes")
    if not 0 <= shard_id < num_shards:
        raise UserError(f"shard_id: there is no shard {shard_id} of {num_shards}")
    num_rows = batch_size // num_shards
    return range(shard_id * num_rows, (shard_id + 1) * num_rows)


def all_examples(source: ExampleSource) -> Iterator[Example]:
    """Returns the examples of one epoch."""
    for unit in range(source.num_units):
        cursor: Cursor | None = source.start(unit)
        while cursor is not None:
            example, cursor = source.read(cursor)
            if example is not None:
                yield example


def eval_batches(
    examples: Iterator[Example],
    task_feature_lengths: Mapping[str, int],
    pack: bool,
    *,
    batch_size: int,
    rows: range,
) -> Iterator[Batch]:
    """Returns `rows` of the batches of some examples; the last one is filled up with padding."""
    packer = Packer(task_feature_lengths, pack)
    closed = [packer.add(example) for example in examples]
    global_rows = [row for row in closed if row is not None] + packer.flush()
    for start in range(0, len(global_rows), batch_size):
        mine = global_rows[start : start + batch_size][rows.start : rows.stop]
        yield to_batch(mine, task_feature_lengths, len(rows), pack)


class SourceRowStream:
    """A row of every batch, from a source whose examples are read by cursor."""

    def __init__(
        self,
        source: ExampleSource,
        task_feature_lengths: Mapping[str, int],
        pack: bool,
        first_unit: int,
        stride: int,
    ):
        """`source` is this stream's own; it takes the units first_unit, first_unit + stride, …"""
        self._source = source
        self._stride = stride
        self._packer = Packer(task_feature_lengths, pack)
        self._cursor = source.start(first_unit)

    def next_row(self) -> Row:
        """Returns the examples of the next row."""
        num_empty_units = 0
        while True:
            cursor = self._cursor
            example, following = self._source.read(cursor)
            self._cursor = following or self._source.start(cursor[0] + self._stride)
            if example is not None:
                num_empty_units = 0
                row = self._packer.add(example, cursor)
                if row is not None:
                    return row
            elif num_empty_units > self._source.num_units:
                raise UserError("data: there is not one token to train on")
            else:
                num_empty_units += 1

    def get_state(self) -> State:
        """Returns the place after the last row."""
        return {
            "next": list(self._cursor),
            "open": [row.cursors.copy() for row in self._packer.open_rows],
        }

    def set_state(self, state: State) -> None:
        """Returns to a place, reading again the examples of the rows that were open."""
        self._cursor = tuple(state["next"])
        self._packer.open_rows = [self._read_again(cursors) for cursors in state["open"]]

    def _read_again(self, cursors: Sequence[Sequence[int]]) -> OpenRow:
        row = OpenRow()
        for cursor in map(tuple, cursors):
            example, _ = self._source.read(cursor)
            assert example is not None
            row.add(example, cursor)
        return row


class StreamsIterator:
    """Batches of row streams, made ahead of time in a thread."""

    def __init__(
        self,
        streams: Mapping[int, RowStream],
        task_feature_lengths: Mapping[str, int],
        pack: bool,
        fingerprint: str,
        prefetch: int,
    ):
        """`streams` by their rows in the global batch; `fingerprint` is of what is trained on."""
        self._streams = streams
        self._lengths = task_feature_lengths
        self._pack = pack
        self._fingerprint = fingerprint
        self._prefetch = prefetch
        # One worker makes the batches in their order. Each comes with the place after it, so that
        # what was made ahead does not count as handed out.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead: deque[Future[tuple[Batch, State]]] = deque()
        self._state = self._streams_state()

    def __iter__(self) -> StreamsIterator:
        return self

    def __next__(self) -> Batch:
        while len(self._ahead) <= self._prefetch:
            self._ahead.append(self._executor.submit(self._make))
        batch, self._state = self._ahead.popleft().result()
        return batch

    def get_state(self) -> State:
        """Returns the place after the last batch that was returned."""
        return self._state

    def set_state(self, state: State) -> None:
        """Returns to a place.

        Raises:
          UserError: it belongs to another batch size, or to other data.
        """
        missing = [str(row) for row in self._streams if str(row) not in state]
        if missing:
            raise UserError(
                f"the stored place in the data has no row {', '.join(missing[:5])}; "
                "expected that of a run with the same batch_size"
            )
        if state["data"] != self._fingerprint:
            raise UserError(
                f"the training text or vocabulary is not what the stored place belongs to: "
                f"{self._fingerprint} now, {state['data']} then"
            )
        for future in self._ahead:
            future.cancel()
        if self._ahead:
            wait(self._ahead)
            self._ahead.clear()
        for row, stream in self._streams.items():
            stream.set_state(state[str(row)])
        self._state = self._streams_state()

    def _make(self) -> tuple[Batch, State]:
        rows = [stream.next_row() for stream in self._streams.values()]
        return to_batch(rows, self._lengths, len(rows), self._pack), self._streams_state()

    def _streams_state(self) -> State:
        states: State = {str(row): stream.get_state() for row, stream in self._streams.items()}
        return {"data": self._fingerprint, **states}
