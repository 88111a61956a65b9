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

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from mtf.data.examples import Cursor, Example, ExampleSource
from mtf.data.mixing import Mixing, scattered
from mtf.data.packing import HostBatch, OpenRow, Packer, Row, to_batch
from mtf.errors import UserError

IteratorState = dict[str, Any]
# An evaluation's name → one function or several that read its examples, the same at every call.
EvaluationParts = dict[str, list[Callable[[], Iterator[Example]]]]
# An evaluation's name → what returns its batches, the same at every call.
Evaluations = dict[str, Callable[[], Iterator[HostBatch]]]


class BatchIterator(Protocol):
    """Batches without end, whose place can be stored and returned to."""

    def __iter__(self) -> BatchIterator: ...

    def __next__(self) -> HostBatch:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> IteratorState:
        """Returns the place after the last batch that was returned, small and fit for JSON."""

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place; `state` may join those of several processes."""


class RowStream(Protocol):
    """Makes one row after the other."""

    def next_row(self) -> Row:
        """Returns the examples of the next row."""

    def get_state(self) -> IteratorState:
        """Returns the place after the last row."""

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place."""


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that a process makes: `rows`, of the batch's.

    Attributes:
      batch_size: rows of the global batch.
      shard_id: which part.
      num_shards: how many there are, a divisor of `batch_size`.

    Raises:
      UserError: the rows cannot be shared by so many processes.
    """

    batch_size: int
    shard_id: int = 0
    num_shards: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size: {self.batch_size} is less than 1")
        if self.batch_size % self.num_shards:
            raise UserError(
                f"batch_size: {self.batch_size} rows cannot be shared by {self.num_shards} "
                "processes"
            )
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(f"shard_id: there is no shard {self.shard_id} of {self.num_shards}")

    @property
    def rows(self) -> range:
        """The numbers of the rows in the global batch."""
        num_rows = self.batch_size // self.num_shards
        return range(self.shard_id * num_rows, (self.shard_id + 1) * num_rows)


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
    shard: Shard,
) -> Iterator[HostBatch]:
    """Yields a shard of the batches of some examples; the last one is filled up with padding."""
    packed, rows = _packed_rows(examples, Packer(task_feature_lengths, pack)), shard.rows
    while global_rows := list(itertools.islice(packed, shard.batch_size)):
        mine = global_rows[rows.start : rows.stop]
        yield to_batch(mine, task_feature_lengths, len(rows), pack)


def _packed_rows(examples: Iterator[Example], packer: Packer) -> Iterator[Row]:
    for example in examples:
        row = packer.add(example)
        if row is not None:
            yield row
    yield from packer.flush()


class SourceReader:
    """The examples of a source's units first_unit, first_unit + stride, … one after the other.

    Attributes:
      cursor: of the next example, or of a place before it where there is none.
    """

    def __init__(self, source: ExampleSource, first_unit: int, stride: int):
        """`source` is this reader's own."""
        self.source = source
        self.cursor = source.start(first_unit)
        self._stride = stride

    def next_example(self) -> tuple[Example, Cursor]:
        """Returns the next example, and its cursor.

        Raises:
          UserError: a whole epoch of units has none.
        """
        num_empty_units = 0
        while True:
            cursor = self.cursor
            example, following = self.source.read(cursor)
            self.cursor = following or self.source.start(cursor[0] + self._stride)
            if example is not None:
                return example, cursor
            num_empty_units += 1
            if num_empty_units > self.source.num_units + 1:
                raise UserError("data: there are no tokens to train on")


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
        self._reader = SourceReader(source, first_unit, stride)
        self._packer = Packer(task_feature_lengths, pack)

    def next_row(self) -> Row:
        """Returns the examples of the next row."""
        while True:
            row = self._packer.add(*self._reader.next_example())
            if row is not None:
                return row

    def get_state(self) -> IteratorState:
        """Returns the place after the last row."""
        return {
            "next": list(self._reader.cursor),
            "open": _open_rows_state(self._packer),
        }

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place."""
        self._reader.cursor = tuple(state["next"])
        self._packer.open_rows = _opened_again(state["open"], self._read_again)

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        return [_present(self._reader.source.read(cursor)) for cursor in cursors]


class MixedRowStream:
    """A row of every batch, from several sources at rates.

    The examples of all rows together are one mixed sequence (`mtf.data.mixing`), of which row r
    has the examples r, r + stride, …; the sequence says which source each is from. Within a
    source, the row has the units r, r + stride, … as `SourceRowStream` has them.
    """

    def __init__(
        self,
        sources: Sequence[ExampleSource],
        mixing: Mixing,
        seed: int,
        task_feature_lengths: Mapping[str, int],
        pack: bool,
        row: int,
        stride: int,
    ):
        """`sources` are this stream's own; `mixing` has as many components."""
        self._readers = [SourceReader(source, row, stride) for source in sources]
        self._mixing = mixing
        self._seed = seed
        self._packer = Packer(task_feature_lengths, pack)
        self._row = row
        self._stride = stride
        self._num_taken = 0

    def next_row(self) -> Row:
        """Returns the examples of the next row."""
        while True:
            place = scattered(self._row + self._stride * self._num_taken, self._seed)
            component, _ = self._mixing.locate(place)
            example, cursor = self._readers[component].next_example()
            self._num_taken += 1
            row = self._packer.add(example, (component, *cursor))
            if row is not None:
                return row

    def get_state(self) -> IteratorState:
        """Returns the place after the last row."""
        return {
            "taken": self._num_taken,
            "next": [list(reader.cursor) for reader in self._readers],
            "open": _open_rows_state(self._packer),
        }

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place."""
        self._num_taken = state["taken"]
        for reader, cursor in zip(self._readers, state["next"], strict=True):
            reader.cursor = tuple(cursor)
        self._packer.open_rows = _opened_again(state["open"], self._read_again)

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        return [
            _present(self._readers[component].source.read(tuple(cursor)))
            for component, *cursor in cursors
        ]


def _open_rows_state(packer: Packer) -> list[IteratorState]:
    return [
        {"cursors": row.cursors.copy(), "lengths": [row.num_inputs, row.num_targets]}
        for row in packer.open_rows
    ]


def _opened_again(
    states: Sequence[IteratorState], read: Callable[[Sequence[Cursor]], Row]
) -> list[OpenRow]:
    """Returns open rows of a stored place; `read` gives the examples that they had."""
    rows = []
    for state in states:
        cursors = [tuple(cursor) for cursor in state["cursors"]]
        num_inputs, num_targets = state["lengths"]
        rows.append(
            OpenRow(
                cursors=cursors.copy(),
                num_inputs=num_inputs,
                num_targets=num_targets,
                earlier=functools.partial(read, cursors),
            )
        )
    return rows


def _present(read: tuple[Example | None, Cursor | None]) -> Example:
    example, _ = read
    assert example is not None
    return example


class StreamsIterator:
    """Batches of row streams, made ahead of time in a thread."""

    def __init__(
        self,
        streams: Mapping[int, RowStream],
        task_feature_lengths: Mapping[str, int],
        pack: bool,
        fingerprint: str,
        prefetch: int,
        rows_per_stream: int = 1,
    ):
        """Starts at the beginning.

        Args:
          streams: by their numbers in the global batch, each `rows_per_stream` rows of it.
          task_feature_lengths: of a row.
          pack: whether rows hold several examples.
          fingerprint: of what is trained on, and how: `name=value; …`.
          prefetch: batches made ahead of time.
          rows_per_stream: rows that each stream makes for a batch, one after the other.
        """
        self._streams = streams
        self._rows_per_stream = rows_per_stream
        self._lengths = task_feature_lengths
        self._pack = pack
        self._fingerprint = fingerprint
        self._prefetch = prefetch
        # One worker makes the batches in their order. Each comes with the place after it, so that
        # what was made ahead does not count as handed out.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead: deque[Future[tuple[HostBatch, IteratorState]]] = deque()
        self._state = self._streams_state()

    def __iter__(self) -> StreamsIterator:
        return self

    def __next__(self) -> HostBatch:
        while len(self._ahead) <= self._prefetch:
            self._ahead.append(self._executor.submit(self._make))
        batch, self._state = self._ahead.popleft().result()
        return batch

    def get_state(self) -> IteratorState:
        """Returns the place after the last batch that was returned."""
        return self._state

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place.

        Raises:
          UserError: it belongs to another batch size, or to other data.
        """
        missing = [str(number) for number in self._streams if str(number) not in state]
        if missing:
            raise UserError(
                f"the stored place in the data has no row {', '.join(missing[:5])}; "
                "expected that of a run with the same batch_size"
            )
        if state["data"] != self._fingerprint:
            now, then = _differences(self._fingerprint, state["data"])
            raise UserError(
                "the training text or vocabulary is not what the stored place belongs to, or not "
                f"what is made of it: {now} now, {then} then"
            )
        for future in self._ahead:
            future.cancel()
        if self._ahead:
            wait(self._ahead)
            self._ahead.clear()
        for row, stream in self._streams.items():
            stream.set_state(state[str(row)])
        self._state = self._streams_state()

    def _make(self) -> tuple[HostBatch, IteratorState]:
        rows = [
            stream.next_row()
            for stream in self._streams.values()
            for _ in range(self._rows_per_stream)
        ]
        return to_batch(rows, self._lengths, len(rows), self._pack), self._streams_state()

    def _streams_state(self) -> IteratorState:
        states: IteratorState = {
            str(row): stream.get_state() for row, stream in self._streams.items()
        }
        return {"data": self._fingerprint, **states}


def _differences(now: str, then: str) -> tuple[str, str]:
    """Returns those parts of two fingerprints that the other does not have."""
    parts = now.split("; "), then.split("; ")
    return (
        "; ".join(part for part in parts[0] if part not in parts[1]),
        "; ".join(part for part in parts[1] if part not in parts[0]),
    )
