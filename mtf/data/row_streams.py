"""Makes batches in which each row is read from a separate stream of examples.

Row r reads the groups r, r + batch_size, … of the endless sequence that `mtf.data.examples`
describes. Therefore, batches do not depend on the number of processes, and the rows together use
every document or pair once per epoch. Packed rows advance at different speeds, so they may be in
different epochs at the same step.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mtf.base.checks import AT_LEAST_ONE, check_fields
from mtf.base.errors import UserError
from mtf.data.examples import Cursor, Example, ExampleSource
from mtf.data.mixing import Mixing, scattered
from mtf.data.packing import HostBatch, OpenRow, Packer, Row, to_batch
from mtf.data.settings import DataConfig

IteratorState = dict[str, Any]
# Function that yields the examples of an evaluation, which are the same on every call.
ExamplesReader = Callable[[], Iterator[Example]]
# Name of an evaluation → function that yields its examples.
EvaluationParts = dict[str, ExamplesReader]
# If there are more evaluations than this, they are joined into one.
MAX_EVALUATIONS = 20
# Name of an evaluation → function that yields its batches, which are the same on every call.
Evaluations = dict[str, Callable[[], Iterator[HostBatch]]]


class BatchIterator(Protocol):
    """An endless iterator over batches; its position can be stored and restored."""

    def __iter__(self) -> BatchIterator: ...

    def __next__(self) -> HostBatch:
        """Returns this process's rows of the next global batch."""

    def get_state(self) -> IteratorState:
        """Returns the position after the last returned batch, as a small JSON object."""

    def set_state(self, state: IteratorState) -> None:
        """Restores a position; `state` may combine the states of several processes."""


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that one process makes.

    Attributes:
      batch_size: number of rows in the global batch.
      shard_id: index of the part.
      num_shards: number of parts, a divisor of `batch_size`.
      worker, num_workers: index and number of the worker process, if several make the part.
    """

    batch_size: int
    shard_id: int = 0
    num_shards: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "batch_size")
        if self.batch_size % self.num_shards:
            raise UserError(
                f"batch_size: {self.batch_size} rows cannot be divided evenly among "
                f"{self.num_shards} processes; expected a multiple of {self.num_shards}"
            )

    @property
    def rows(self) -> range:
        """The indices, in the global batch, of the rows that this process or worker makes."""
        rows = range(self.batch_size)
        for part, number in ((self.shard_id, self.num_shards), (self.worker, self.num_workers)):
            rows = rows[len(rows) * part // number : len(rows) * (part + 1) // number]
        return rows

    def divided(self, num_workers: int) -> list[Shard]:
        """Returns the parts of at most `num_workers` workers, each with at least one row."""
        number = min(num_workers, len(self.rows))
        return [replace(self, worker=i, num_workers=number) for i in range(number)]


def all_examples(source: ExampleSource) -> Iterator[Example]:
    """Yields the examples of one epoch."""
    for group in range(source.num_groups):
        yield from group_examples(source, group)


def group_examples(source: ExampleSource, group: int) -> Iterator[Example]:
    """Yields the examples of one group."""
    cursor: Cursor | None = source.start(group)
    while cursor is not None:
        example, cursor = source.read(cursor)
        if example is not None:
            yield example


def in_turn(readers: Iterable[ExamplesReader]) -> Iterator[Example]:
    """Yields one example from each reader in turn, until all are exhausted."""
    waiting = deque(read() for read in readers)
    while waiting:
        reader = waiting.popleft()
        for example in itertools.islice(reader, 1):
            yield example
            waiting.append(reader)


def joined_if_many(parts: EvaluationParts, name: str) -> EvaluationParts:
    """Returns `parts`, joined into one evaluation if there are more than `MAX_EVALUATIONS`.

    The joined evaluation is called `name`, and it alternates between the parts.
    """
    if len(parts) <= MAX_EVALUATIONS:
        return parts
    return {name: functools.partial(in_turn, list(parts.values()))}


def eval_batches(
    examples: Iterator[Example], task_feature_lengths: Mapping[str, int], pack: bool, shard: Shard
) -> Iterator[HostBatch]:
    """Packs the examples into batches, and yields one shard of each; pads the last batch."""

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
    """Reads the examples in the groups first_group, first_group + stride, … of a source.

    Attributes:
      source: the source, which no other reader uses.
      cursor: cursor of the next example.
    """

    def __init__(self, source: ExampleSource, first_group: int, stride: int):
        self.source = source
        self.cursor = source.start(first_group)
        self._stride = stride

    def next_example(self) -> tuple[Example, Cursor]:
        """Returns the next example and its cursor; raises UserError if an epoch has no examples."""
        for _ in range(self.source.num_groups + 2):
            cursor = self.cursor
            example, following = self.source.read(cursor)
            self.cursor = following or self.source.start(cursor[0] + self._stride)
            if example is not None:
                return example, cursor
        raise UserError("data: the training text contains no tokens")


class RowStream:
    """Packs the examples from one or more readers into rows of batches.

    If there are several readers, `mtf.data.mixing` mixes them at given rates. The positions `row`,
    `row` + `stride`, … of the mixed sequence determine which readers provide the examples.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        data: DataConfig,
        row: int,
        stride: int,
        mixing: Mixing | None,
    ):
        """Initializes the stream; `mixing` has a component per reader (None if only one reader)."""
        self._readers = readers
        self._packer = Packer(data.task_feature_lengths, data.pack)
        self._seed, self._row, self._stride = data.seed, row, stride
        self._mixing = mixing
        self._num_taken = 0

    def next_row(self) -> Row:
        """Returns the examples of the next row."""
        while True:
            reader = 0
            if self._mixing is not None:
                position = scattered(self._row + self._stride * self._num_taken, self._seed)
                reader, _ = self._mixing.locate(position)
            example, cursor = self._readers[reader].next_example()
            self._num_taken += 1
            row = self._packer.add(example, (reader, *cursor))
            if row is not None:
                return row

    def get_state(self) -> IteratorState:
        """Returns the position after the last row."""
        raise NotImplementedError

    def set_state(self, state: IteratorState) -> None:
        """Continues from a position that `get_state` returned."""
        raise NotImplementedError


class SourceRowStream(RowStream):
    """A `RowStream` whose state contains the cursors of the examples in the open rows.

    If there is only one reader, these cursors do not include the index of the reader.
    """

    _readers: Sequence[SourceReader]

    def get_state(self) -> IteratorState:
        """See `RowStream`."""
        cursors = [list(reader.cursor) for reader in self._readers]
        start = 1 if self._mixing is None else 0
        open_rows = [
            {
                "cursors": [cursor[start:] for cursor in row.cursors],
                "lengths": [row.num_inputs, row.num_targets],
            }
            for row in self._packer.open_rows
        ]
        if self._mixing is None:
            return {"next": cursors[0], "open": open_rows}
        return {"taken": self._num_taken, "next": cursors, "open": open_rows}

    def set_state(self, state: IteratorState) -> None:
        """See `RowStream`; the examples of an open row are read again when the row is closed."""
        self._num_taken = state.get("taken", 0)
        following = [state["next"]] if self._mixing is None else state["next"]
        for reader, cursor in zip(self._readers, following, strict=True):
            reader.cursor = tuple(cursor)
        prefix = (0,) if self._mixing is None else ()
        self._packer.open_rows = []
        for row in state["open"]:
            cursors = [(*prefix, *cursor) for cursor in row["cursors"]]
            num_inputs, num_targets = row["lengths"]
            earlier = functools.partial(self._read_again, cursors.copy())
            open_row = OpenRow([], cursors, num_inputs, num_targets, earlier)
            self._packer.open_rows.append(open_row)

    def _read_again(self, cursors: Sequence[Cursor]) -> Row:
        found = (self._readers[reader].source.read(tuple(cursor))[0] for reader, *cursor in cursors)
        return [example for example in found if example is not None]


class StreamsIterator:
    """A `BatchIterator` that makes batches from row streams in advance in a background thread."""

    def __init__(
        self,
        streams: Mapping[int, RowStream],
        data: DataConfig,
        fingerprint: str,
        prefetch: int,
        rows_per_stream: int = 1,
        kept: slice = slice(None),
    ):
        """Initializes the iterator at the beginning of the streams.

        Args:
          streams: dict that maps the index of each stream in the global batch to the stream.
          data: settings that include the lengths of rows and `pack`.
          fingerprint: description of the data (`name=value; …`), which must match on resume.
          prefetch: number of batches that are made in advance; if 0, there is no thread.
          rows_per_stream: number of rows that each stream adds to a batch.
          kept: slice of the streams' rows that this process returns.
        """
        self._streams, self._rows_per_stream, self._kept = streams, rows_per_stream, kept
        self._data, self._fingerprint = data, fingerprint
        self._prefetch = prefetch
        # One worker makes the batches in order, and pairs each batch with the position after it.
        # Therefore, batches made in advance do not change the state that `get_state` returns.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead: deque[Future[tuple[HostBatch, IteratorState]]] = deque()
        self._state = self._streams_state()

    def __iter__(self) -> StreamsIterator:
        return self

    def __next__(self) -> HostBatch:
        if not self._prefetch:
            batch, self._state = self._make()
            return batch
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
                "Set batch_size to the value that was used by the run that wrote the checkpoint"
            )
        if state["data"] != self._fingerprint:
            now, then = self._fingerprint.split("; "), state["data"].split("; ")
            raise UserError(
                "the data position in the checkpoint belongs to different training text or "
                f"settings: now {'; '.join(part for part in now if part not in then)}, but in the "
                f"checkpoint {'; '.join(part for part in then if part not in now)}. To continue "
                "from this position, use the text and the settings of the run that wrote it"
            )
        self._cancel()
        for row, stream in self._streams.items():
            stream.set_state(state[str(row)])
        self._state = self._streams_state()

    def _cancel(self) -> None:
        """Discards the batches that were made in advance."""
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
