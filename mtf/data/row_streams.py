"""Streams of rows: each row of the global batch has its own sequence of examples.

Row r takes the units r, r + batch_size, … of the endless sequence in `mtf.data.examples`. So
batches do not depend on the number of processes, and the rows together use every document or pair
once per epoch. Packed rows advance at different speeds, so their epochs may differ.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mtf.data.examples import Cursor, Example, ExampleSource
from mtf.data.mixing import Mixing, scattered
from mtf.data.packing import HostBatch, OpenRow, Packer, Row, to_batch
from mtf.data.settings import DataConfig
from mtf.errors import UserError

IteratorState = dict[str, Any]
# Name of an evaluation → functions that read its examples, which are the same at every call.
ExamplesReader = Callable[[], Iterator[Example]]
EvaluationParts = dict[str, list[ExamplesReader]]
# If there are more evaluations than this, they are joined.
MAX_EVALUATIONS = 20
# Name of an evaluation → function that returns its batches, which are the same at every call.
Evaluations = dict[str, Callable[[], Iterator[HostBatch]]]


class BatchIterator(Protocol):
    """An endless iterator over batches that can store and restore its position."""

    def __iter__(self) -> BatchIterator: ...

    def __next__(self) -> HostBatch:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> IteratorState:
        """Returns the position after the last returned batch, as small JSON values."""

    def set_state(self, state: IteratorState) -> None:
        """Restores a position; `state` may be the union of several processes' states."""


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that a process makes.

    Attributes:
      batch_size: number of rows in the global batch.
      shard_id: index of the part.
      num_shards: number of parts, a divisor of `batch_size`.
    """

    batch_size: int
    shard_id: int = 0
    num_shards: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.batch_size % self.num_shards:
            raise UserError(
                f"batch_size: {self.batch_size} rows cannot be divided evenly among "
                f"{self.num_shards} processes; expected a multiple of {self.num_shards}"
            )
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(f"shard_id must be in [0, {self.num_shards}), not {self.shard_id}")

    @property
    def rows(self) -> range:
        """Indices of the rows in the global batch."""
        num_rows = self.batch_size // self.num_shards
        return range(self.shard_id * num_rows, (self.shard_id + 1) * num_rows)


def all_examples(source: ExampleSource) -> Iterator[Example]:
    """Yields the examples of one epoch."""
    for unit in range(source.num_units):
        yield from unit_examples(source, unit)


def unit_examples(source: ExampleSource, unit: int) -> Iterator[Example]:
    """Yields the examples of one unit."""
    cursor: Cursor | None = source.start(unit)
    while cursor is not None:
        example, cursor = source.read(cursor)
        if example is not None:
            yield example


def in_turn(readers: Iterable[ExamplesReader]) -> Iterator[Example]:
    """Yields an example from each reader in turn, until all have ended."""
    waiting = deque(read() for read in readers)
    while waiting:
        reader = waiting.popleft()
        for example in itertools.islice(reader, 1):
            yield example
            waiting.append(reader)


def at_most_some(parts: EvaluationParts, name: str) -> EvaluationParts:
    """Returns the evaluations; if there are too many, one called `name` takes them in turn."""
    if len(parts) <= MAX_EVALUATIONS:
        return parts
    readers = list(itertools.chain.from_iterable(parts.values()))
    return {name: [functools.partial(in_turn, readers)]}


def eval_batches(
    examples: Iterator[Example], task_feature_lengths: Mapping[str, int], pack: bool, shard: Shard
) -> Iterator[HostBatch]:
    """Yields a shard of each batch of the examples; the last batch is padded."""

    def packed() -> Iterator[Row]:
        packer = Packer(task_feature_lengths, pack)
        yield from filter(None, map(packer.add, examples))
        yield from packer.flush()

    global_rows = packed()
    while batch := list(itertools.islice(global_rows, shard.batch_size)):
        mine = batch[shard.rows.start : shard.rows.stop]
        yield to_batch(mine, task_feature_lengths, len(shard.rows), pack)


class Reader(Protocol):
    """An endless sequence of examples."""

    def next_example(self) -> tuple[Example, Cursor]:
        """Returns the next example and its cursor."""


class SourceReader:
    """The examples of a source's units first_unit, first_unit + stride, ….

    Attributes:
      source: the source, which is not shared with other readers.
      cursor: cursor from which the next example is read.
    """

    def __init__(self, source: ExampleSource, first_unit: int, stride: int):
        self.source = source
        self.cursor = source.start(first_unit)
        self._stride = stride

    def next_example(self) -> tuple[Example, Cursor]:
        """Returns the next example and its cursor; raises UserError if an epoch has none."""
        for _ in range(self.source.num_units + 2):
            cursor = self.cursor
            example, following = self.source.read(cursor)
            self.cursor = following or self.source.start(cursor[0] + self._stride)
            if example is not None:
                return example, cursor
        raise UserError("data: the training text contains no tokens")


R = TypeVar("R", bound=Reader)


class RowStream(Generic[R]):
    """A row of every batch, packed from the examples of one reader, or of several at rates.

    Several readers are mixed (`mtf.data.mixing`): row r has the examples r, r + stride, … of a
    sequence that says which reader each example is from.
    """

    def __init__(
        self, readers: Sequence[R], data: DataConfig, row: int, stride: int, mixing: Mixing | None
    ):
        """`mixing` has a component for each reader; None if there is only one."""
        self._readers = readers
        self._packer = Packer(data.task_feature_lengths, data.pack)
        self._seed, self._row, self._stride = data.seed, row, stride
        self._mixing = mixing
        self._num_taken = 0

    def next_row(self) -> Row:
        """Returns the examples of the next row."""
        while True:
            if self._mixing is None:
                example, cursor = self._readers[0].next_example()
            else:
                unit = scattered(self._row + self._stride * self._num_taken, self._seed)
                component, _ = self._mixing.locate(unit)
                example, cursor = self._readers[component].next_example()
                cursor = (component, *cursor)
            self._num_taken += 1
            row = self._packer.add(example, cursor)
            if row is not None:
                return row

    def get_state(self) -> IteratorState:
        """Returns the position after the last row."""
        raise NotImplementedError

    def set_state(self, state: IteratorState) -> None:
        """Restores a position."""
        raise NotImplementedError


class SourceRowStream(RowStream[SourceReader]):
    """A row of every batch from sources; its state has the cursors of the open rows' examples."""

    def get_state(self) -> IteratorState:
        """See `RowStream`."""
        cursors = [list(reader.cursor) for reader in self._readers]
        open_rows = [
            {"cursors": row.cursors.copy(), "lengths": [row.num_inputs, row.num_targets]}
            for row in self._packer.open_rows
        ]
        if self._mixing is None:
            return {"next": cursors[0], "open": open_rows}
        return {"taken": self._num_taken, "next": cursors, "open": open_rows}

    def set_state(self, state: IteratorState) -> None:
        """See `RowStream`; an open row's examples are read again when it is closed."""
        self._num_taken = state.get("taken", 0)
        following = [state["next"]] if self._mixing is None else state["next"]
        for reader, cursor in zip(self._readers, following, strict=True):
            reader.cursor = tuple(cursor)
        self._packer.open_rows = []
        for row in state["open"]:
            cursors = [tuple(cursor) for cursor in row["cursors"]]
            earlier = functools.partial(self._read_again, cursors)
            num_inputs, num_targets = row["lengths"]
            open_row = OpenRow([], cursors.copy(), num_inputs, num_targets, earlier)
            self._packer.open_rows.append(open_row)

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        if self._mixing is None:
            return self._readers[0].source.read_again(cursors)
        return [
            example
            for component, *cursor in cursors
            for example in self._readers[component].source.read_again([tuple(cursor)])
        ]


class StreamsIterator:
    """Batches of row streams, made in advance by a thread (`BatchIterator`)."""

    def __init__(
        self,
        streams: Mapping[int, RowStream[Any]],
        data: DataConfig,
        fingerprint: str,
        prefetch: int,
        rows_per_stream: int = 1,
        kept: slice = slice(None),
    ):
        """Starts at the beginning.

        Args:
          streams: streams by their index in the global batch.
          data: settings with the lengths of rows and `pack`.
          fingerprint: description of the data, `name=value; …`, which must match on resume.
          prefetch: number of batches made in advance.
          rows_per_stream: number of rows of a batch that each stream makes.
          kept: the part of the streams' rows that this process returns.
        """
        self._streams, self._rows_per_stream, self._kept = streams, rows_per_stream, kept
        self._data, self._fingerprint = data, fingerprint
        self._prefetch = prefetch
        # One worker makes the batches in order. Each comes with the position after it, so batches
        # made in advance do not advance the state.
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
        """See `BatchIterator`."""
        return self._state

    def set_state(self, state: IteratorState) -> None:
        """See `BatchIterator`; raises UserError if the data or the batch size has changed."""
        missing = [str(number) for number in self._streams if str(number) not in state]
        if missing:
            raise UserError(
                "the data position in the checkpoint has no entry for row "
                f"{', '.join(missing[:5])} of the batch, so it was stored with another batch_size. "
                "Set batch_size to the value of the run that wrote the checkpoint"
            )
        if state["data"] != self._fingerprint:
            now, then = self._fingerprint.split("; "), state["data"].split("; ")
            raise UserError(
                "the data position in the checkpoint belongs to different training text or "
                f"settings: now {'; '.join(part for part in now if part not in then)}, but in the "
                f"checkpoint {'; '.join(part for part in then if part not in now)}. To continue "
                "from this position, use the text and the settings of the checkpoint's run"
            )
        self._cancel()
        for row, stream in self._streams.items():
            stream.set_state(state[str(row)])
        self._state = self._streams_state()

    def _cancel(self) -> None:
        """Drops the batches that were made in advance."""
        for future in self._ahead:
            future.cancel()
        wait(self._ahead)
        self._ahead.clear()

    def _make(self) -> tuple[HostBatch, IteratorState]:
        rows = [
            stream.next_row()
            for stream in self._streams.values()
            for _ in range(self._rows_per_stream)
        ][self._kept]
        data = self._data
        batch = to_batch(rows, data.task_feature_lengths, len(rows), data.pack)
        return batch, self._streams_state()

    def _streams_state(self) -> IteratorState:
        states = {str(row): stream.get_state() for row, stream in self._streams.items()}
        return {"data": self._fingerprint, **states}
