"""Rows of batches: each row of the global batch is a stream of its own.

Row r takes the units r, r + batch_size, … of a sequence of examples that goes on over all epochs,
each in its own random order (`mtf.data.examples`). So the global batch at a step is the same
however many processes share it, and over all rows every document or pair is used exactly once an
epoch. An epoch need not be a multiple of anything: with fewer units than rows, some rows start in
later epochs. Where rows are packed, one stream may begin an epoch before another ends the last.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mtf.data.examples import Cursor, Example, ExampleSource
from mtf.data.mixing import Mixing, scattered
from mtf.data.packing import HostBatch, OpenRow, Packer, Row, to_batch
from mtf.data.settings import DataConfig
from mtf.errors import UserError

IteratorState = dict[str, Any]
# An evaluation's name → one function or several that read its examples, the same at every call.
EvaluationParts = dict[str, list[Callable[[], Iterator[Example]]]]
# With more parts of the data than this, all are one evaluation instead of one each.
MAX_EVALUATIONS = 20
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


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that a process makes.

    Attributes:
      batch_size: rows of the global batch.
      shard_id: which part.
      num_shards: how many there are, a divisor of `batch_size`.
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


def at_most_some(parts: EvaluationParts, name: str) -> EvaluationParts:
    """Returns the evaluations, or one called `name` of all their parts if they are too many."""
    if len(parts) <= MAX_EVALUATIONS:
        return parts
    return {name: list(itertools.chain.from_iterable(parts.values()))}


def eval_batches(
    examples: Iterator[Example], task_feature_lengths: Mapping[str, int], pack: bool, shard: Shard
) -> Iterator[HostBatch]:
    """Yields a shard of the batches of some examples; the last one is filled up with padding."""

    def packed() -> Iterator[Row]:
        packer = Packer(task_feature_lengths, pack)
        yield from filter(None, map(packer.add, examples))
        yield from packer.flush()

    global_rows = packed()
    while batch := list(itertools.islice(global_rows, shard.batch_size)):
        mine = batch[shard.rows.start : shard.rows.stop]
        yield to_batch(mine, task_feature_lengths, len(shard.rows), pack)


class Reader(Protocol):
    """Examples one after the other."""

    def next_example(self) -> tuple[Example, Cursor]:
        """Returns the next example, and its cursor."""


class SourceReader:
    """The examples of a source's units first_unit, first_unit + stride, … one after the other.

    Attributes:
      source: this reader's own.
      cursor: of the next example, or of a place before it where there is none.
    """

    def __init__(self, source: ExampleSource, first_unit: int, stride: int):
        self.source = source
        self.cursor = source.start(first_unit)
        self._stride = stride

    def next_example(self) -> tuple[Example, Cursor]:
        """See `Reader`; raises UserError if a whole epoch of units has no example."""
        for _ in range(self.source.num_units + 2):
            cursor = self.cursor
            example, following = self.source.read(cursor)
            self.cursor = following or self.source.start(cursor[0] + self._stride)
            if example is not None:
                return example, cursor
        raise UserError("data: there are no tokens to train on")


R = TypeVar("R", bound=Reader)


class RowStream(Generic[R]):
    """A row of every batch, packed from the examples of one reader, or of several at rates.

    With several, the examples of all rows together are one mixed sequence (`mtf.data.mixing`), of
    which row r has the examples r, r + stride, …; the sequence says which reader each is from.
    """

    def __init__(
        self, readers: Sequence[R], data: DataConfig, row: int, stride: int, mixing: Mixing | None
    ):
        """`mixing` has as many components as there are readers; None: there is one reader."""
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
                place = scattered(self._row + self._stride * self._num_taken, self._seed)
                component, _ = self._mixing.locate(place)
                example, cursor = self._readers[component].next_example()
                cursor = (component, *cursor)
            self._num_taken += 1
            row = self._packer.add(example, cursor)
            if row is not None:
                return row

    def get_state(self) -> IteratorState:
        """Returns the place after the last row."""
        raise NotImplementedError

    def set_state(self, state: IteratorState) -> None:
        """Returns to a place."""
        raise NotImplementedError


class SourceRowStream(RowStream[SourceReader]):
    """A row of every batch from sources; a place holds the cursors of the examples in open rows."""

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
        """See `RowStream`; the examples of open rows are read when the rows are closed."""
        self._num_taken = state.get("taken", 0)
        following = [state["next"]] if self._mixing is None else state["next"]
        for reader, cursor in zip(self._readers, following, strict=True):
            reader.cursor = tuple(cursor)
        self._packer.open_rows = []
        for row in state["open"]:
            cursors = [tuple(cursor) for cursor in row["cursors"]]
            earlier = functools.partial(self._read_again, cursors)
            num_inputs, num_targets = row["lengths"]
            opened = OpenRow([], cursors.copy(), num_inputs, num_targets, earlier)
            self._packer.open_rows.append(opened)

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        if self._mixing is None:
            return self._readers[0].source.read_again(cursors)
        return [
            example
            for component, *cursor in cursors
            for example in self._readers[component].source.read_again([tuple(cursor)])
        ]


class StreamsIterator:
    """Batches of row streams, made ahead of time in a thread (`BatchIterator`)."""

    def __init__(
        self,
        streams: Mapping[int, RowStream[Any]],
        data: DataConfig,
        fingerprint: str,
        prefetch: int,
        rows_per_stream: int = 1,
    ):
        """Starts at the beginning.

        Args:
          streams: by their numbers in the global batch.
          data: the lengths of a row, and whether it holds several examples.
          fingerprint: of what is trained on, and how: `name=value; …`.
          prefetch: batches made ahead of time.
          rows_per_stream: rows that each stream makes for a batch, one after the other.
        """
        self._streams, self._rows_per_stream = streams, rows_per_stream
        self._data, self._fingerprint = data, fingerprint
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
        """See `BatchIterator`."""
        return self._state

    def set_state(self, state: IteratorState) -> None:
        """See `BatchIterator`; raises UserError if the place is of other data or batch size."""
        missing = [str(number) for number in self._streams if str(number) not in state]
        if missing:
            raise UserError(
                f"the stored place in the data has no row {', '.join(missing[:5])}; "
                "expected that of a run with the same batch_size"
            )
        if state["data"] != self._fingerprint:
            now, then = self._fingerprint.split("; "), state["data"].split("; ")
            raise UserError(
                "the training text or vocabulary is not what the stored place belongs to, or not "
                f"what is made of it: {'; '.join(part for part in now if part not in then)} now, "
                f"{'; '.join(part for part in then if part not in now)} then"
            )
        for future in self._ahead:
            future.cancel()
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
        data = self._data
        batch = to_batch(rows, data.task_feature_lengths, len(rows), data.pack)
        return batch, self._streams_state()

    def _streams_state(self) -> IteratorState:
        states = {str(row): stream.get_state() for row, stream in self._streams.items()}
        return {"data": self._fingerprint, **states}
