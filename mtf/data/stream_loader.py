"""Streams a dataset of documents or pairs during training (`HubStreamConfig`).

A stream reads each subset one window of documents at a time; the order of the files changes in
every epoch. The documents of a window are shuffled and turned into examples (`mtf.data.examples`),
which are packed into the stream's rows of every batch. The state of a stream contains the start of
each subset's window, which the `datasets` library can restore, and the position in that window.
Pairs are read like documents.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import glob
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

from mtf.base.errors import NotCheckedError, UserError
from mtf.base.extras import check_extra
from mtf.data.examples import (
    Cursor,
    DocumentSource,
    Example,
    ExampleSource,
    Order,
    PairSource,
    fingerprint,
)
from mtf.data.mixing import Mixing
from mtf.data.randomness import Purpose, derived_seed, permutation
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    IteratorState,
    RowStream,
    Shard,
    StreamsIterator,
    group_examples,
    joined_if_many,
)
from mtf.data.settings import HubStreamConfig
from mtf.data.sources.hub_stream import Split, open_splits
from mtf.data.sources.text_files import Pair
from mtf.data.tasks.columns import FromColumns, is_template
from mtf.storage import has_scheme

_MAX_READERS = 16
_BEGINNING: Cursor = (0, 0, 0, 0)


def make_train_iterator(data: HubStreamConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.data.loaders.make_train_iterator`."""
    batch_size = shard.batch_size
    _check_streams(data, batch_size)
    rows_per_stream = batch_size // data.num_streams
    # If processes share a stream, each process makes all rows of the stream but returns only some.
    first, last = (row // rows_per_stream for row in (shard.rows[0], shard.rows[-1]))
    numbers = range(first, last + 1)
    splits = _open_splits(data, data.split)
    executor = ThreadPoolExecutor(
        max_workers=min(len(numbers) * len(splits), _MAX_READERS), thread_name_prefix="data-stream"
    )
    mixing = Mixing(list((data.subsets or {"": 1.0}).values()))
    streams = {}
    for number in numbers:
        subsets = [_Subset(data, split, number, executor) for split in splits.items()]
        streams[number] = _Stream(subsets, data, number, data.num_streams, mixing)
    start = shard.rows.start - first * rows_per_stream
    kept = slice(start, start + len(shard.rows))
    return StreamsIterator(streams, data, _fingerprint(data), prefetch, rows_per_stream, kept)


def evaluation_parts(data: HubStreamConfig) -> EvaluationParts:
    """Returns one evaluation called `SPLIT`, or one called `SPLIT_SUBSET` for each subset."""
    if data.eval_split is None:
        return {}
    splits = _open_splits(data, data.eval_split, required=False)
    limit = data.eval_documents
    if limit is not None and splits:
        limit = max(limit // len(splits), 1)
    parts: EvaluationParts = {}
    for name, split in splits.items():
        # Copies of this iterator share the documents that any of them has read.
        (documents,) = itertools.tee(_first_documents(data, split, limit), 1)
        part = f"{data.eval_split}_{name}" if name else data.eval_split
        parts[part] = functools.partial(_evaluation, data, documents)
    return joined_if_many(parts, data.eval_split)


def _check_streams(data: HubStreamConfig, batch_size: int) -> None:
    if batch_size % data.num_streams:
        raise UserError(
            f"data.num_streams: a batch of {batch_size} rows cannot be divided evenly among "
            f"{data.num_streams} streams; expected a divisor of batch_size"
        )
    if data.inputs is None:
        data.check_objective(data.vocabulary.vocab_size)


def check(data: HubStreamConfig, batch_size: int) -> str:
    """See `mtf.data.loaders.check`; does not access the Hugging Face hub."""
    _check_streams(data, batch_size)
    check_extra("datasets", f"streaming {data.dataset}")
    files = data.data_files
    if files is None:
        raise NotCheckedError(f"{data.dataset} is streamed from the Hugging Face hub")
    listed = files.values() if isinstance(files, dict) else [files]
    patterns = [p for each in listed for p in ((each,) if isinstance(each, str) else each)]
    for pattern in patterns:
        if has_scheme(pattern):
            raise NotCheckedError(f"{pattern} is a remote path")
    for pattern in patterns:
        if not glob.glob(pattern, recursive=True):
            raise UserError(f"data.data_files: {pattern} does not match any file")
    return f"{', '.join(patterns)}; the files are checked when the run starts"


def provenance(data: HubStreamConfig) -> dict[str, Any]:
    """See `mtf.data.loaders.provenance`; does not include a hash of the dataset's content."""
    return {"data": _fingerprint(data)}


def _open_splits(data: HubStreamConfig, split: str, *, required: bool = True) -> dict[str, Split]:
    columns = {"inputs": data.inputs, "targets": data.targets}
    found = {name: text for name, text in columns.items() if text and not is_template(text)}
    return open_splits(
        data.dataset,
        data.subsets,
        split,
        columns={"text_key": data.text_key} if data.inputs is None else found,
        data_files=data.data_files,
        required=required,
    )


def _document_of(data: HubStreamConfig, split: Split) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function that makes a text, which may be empty, or a pair from a record."""
    if data.inputs is None or data.targets is None:
        return split.text
    columns = FromColumns(data.inputs, data.targets)

    def pair(row: Mapping[str, Any]) -> Pair:
        try:
            return Pair(**columns.texts(row))
        except UserError as error:
            raise UserError(f"{split.name}: {error}") from error

    return pair


def _source(
    data: HubStreamConfig, read: Callable[[int], Any], order: Order, noise: Purpose
) -> ExampleSource:
    if data.inputs is None:
        return DocumentSource(data, read, order, noise)
    return PairSource(data, read, order)


def _first_documents(data: HubStreamConfig, split: Split, limit: int | None) -> Iterator[Any]:
    """Yields the first `limit` documents of a split, which are read on demand."""
    rows = itertools.chain.from_iterable(map(split.file, range(split.num_files)))
    with _read_errors(split.name):
        yield from itertools.islice(filter(None, map(_document_of(data, split), rows)), limit)


@contextlib.contextmanager
def _read_errors(name: str) -> Iterator[None]:
    """Converts an `OSError`, which `datasets` raises after several attempts, to a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error}") from error


def _evaluation(data: HubStreamConfig, documents: Iterator[Any]) -> Iterator[Example]:
    """Yields the examples from a copy of `documents`; reads one group of documents at a time."""
    size = data.objective.merge_documents if data.inputs is None else 1
    unread = copy.copy(documents)
    for number in itertools.count():
        texts = dict(enumerate(itertools.islice(unread, size), start=number * size))
        if not texts:
            return
        order = Order(number * size + len(texts), data.seed, shuffle=False)
        source = _source(data, texts.__getitem__, order, Purpose.EVALUATION)
        yield from group_examples(source, number)


class _Start(NamedTuple):
    """The position in a stream at which a window of a subset starts.

    Attributes:
      epoch: number of epochs that the stream has completed.
      window: index of the window in the epoch.
      file: position of the file in the epoch's order of files.
      document: index of the next document to read from the file.
      state: state of the `datasets` iterator over the file; None at the beginning of the file.
    """

    epoch: int = 0
    window: int = 0
    file: int = 0
    document: int = 0
    state: dict[str, Any] | None = None


# The documents of a window, which are shuffled together, and the start of the next window.
_Window = tuple[list[Any], _Start]


class _Reader:
    """Reads the documents of a subset for one stream, window by window, in an executor's thread."""

    def __init__(self, data: HubStreamConfig, split: Split, seed: int, stream: int):
        self._data, self._split, self._seed, self._stream = data, split, seed, stream
        # With fewer files than streams, each stream reads all files but keeps only some documents.
        self._shares_files = split.num_files < data.num_streams
        first, step = (0, 1) if self._shares_files else (stream, data.num_streams)
        self._files = np.arange(first, split.num_files, step)
        self._at: _Start | None = None
        self._document_of = _document_of(data, split)
        self._documents: Iterator[tuple[Any, int, int, Any]] = iter(())

    def read(self, start: _Start) -> _Window:
        """Reads the window at `start`; raises UserError if reading fails or there is no text."""
        if self._at != start:
            self._documents = self._read_documents(start)
        with _read_errors(self._split.name):
            read = list(itertools.islice(self._documents, self._data.window_documents))
        if len(read) == self._data.window_documents:
            _, file, number, rows = read[-1]
            following = _Start(start.epoch, start.window + 1, file, number + 1, rows.state_dict())
        elif not read and not start.window:
            raise UserError(
                f"{self._split.name}: stream {self._stream} of {self._data.num_streams} has no "
                "documents; reduce data.num_streams"
            )
        else:
            following = _Start(start.epoch + 1)
            self._documents = self._read_documents(following)
        self._at = following
        return [text for text, *_ in read], following

    def _read_documents(self, start: _Start) -> Iterator[tuple[Any, int, int, Any]]:
        """Yields (document, file position, index in the file, open file) to the epoch's end."""
        order = self._files
        if self._data.shuffle:
            order = order[permutation(len(order), self._seed, start.epoch, Purpose.FILES)]
        for file in range(start.file, len(order)):
            index, first = int(order[file]), 0
            rows = self._split.file(index)
            if file == start.file and start.state is not None:
                rows.load_state_dict(start.state)
                first = start.document
            for number, row in enumerate(rows, start=first):
                # Adding `index` sends the first documents of the files to different streams. This
                # matters if the files are small.
                if self._shares_files and (number + index) % self._data.num_streams != self._stream:
                    continue
                document = self._document_of(row)
                if document:
                    yield document, file, number, rows


class _Subset:
    """Reads the examples of a subset for one stream, and reads the next window in advance."""

    def __init__(
        self, data: HubStreamConfig, split: tuple[str, Split], stream: int, executor: Executor
    ):
        name, files = split
        self.name = name
        self._data = data
        self._seed = derived_seed(data.seed, Purpose.CORPUS, zlib.crc32(name.encode()), stream)
        self._reader, self._executor = _Reader(data, files, self._seed, stream), executor
        self._source: ExampleSource | None = None
        self._ahead: Future[_Window] | None = None
        self._cursor = _BEGINNING
        self._go_to(_Start())

    def next_example(self) -> tuple[Example, Cursor]:
        """See `Reader`."""
        first_epoch = self._start.epoch
        while True:
            source = self._source or self._open()
            example, following = source.read(self._cursor)
            self._cursor = following or source.start(self._cursor[0] + 1)
            if self._cursor[0] == source.num_groups:
                self._go_to(self._following)
            if example is not None:
                return example, ()
            if self._start.epoch > first_epoch + 1:
                raise UserError(f"data.dataset: {self._data.dataset} contains no tokens")

    def get_state(self) -> IteratorState:
        return {"window": self._start._asdict(), "next": list(self._cursor)}

    def set_state(self, state: IteratorState) -> None:
        """Restores a position; the window at this position is read when an example is needed."""
        if self._ahead is not None:
            self._ahead.cancel()
            wait([self._ahead])
            self._ahead = None
        self._go_to(_Start(**state["window"]))
        self._cursor = tuple(state["next"])

    def _go_to(self, start: _Start) -> None:
        self._source = None
        self._start = start
        self._cursor = _BEGINNING

    def _open(self) -> ExampleSource:
        """Returns the examples of the current window, and starts to read the next window."""
        ahead = self._ahead or self._executor.submit(self._reader.read, self._start)
        self._ahead = None
        texts, self._following = ahead.result()
        if not texts:  # The previous window was full, but was also the last one of the epoch.
            self._go_to(self._following)
            return self._open()
        self._ahead = self._executor.submit(self._reader.read, self._following)
        seed = derived_seed(self._seed, Purpose.WINDOW, self._start.epoch, self._start.window)
        order = Order(len(texts), seed, self._data.shuffle)
        self._source = _source(self._data, texts.__getitem__, order, Purpose.NOISE)
        return self._source


class _Stream(RowStream):
    """A `RowStream` whose state includes the examples in the open rows."""

    _readers: Sequence[_Subset]

    def get_state(self) -> IteratorState:
        return {
            "taken": self._num_taken,
            "subsets": {subset.name: subset.get_state() for subset in self._readers},
            "open": self._packer.get_state(),
        }

    def set_state(self, state: IteratorState) -> None:
        self._num_taken = state["taken"]
        for subset in self._readers:
            subset.set_state(state["subsets"][subset.name])
        self._packer.set_state(state["open"])


def _fingerprint(data: HubStreamConfig) -> str:
    names = ["dataset", "subsets", "data_files", "split", "text_key"]
    names += ["num_streams", "window_documents", "shuffle", "seed"]
    if data.inputs is not None:
        names += ["inputs", "targets"]
    return fingerprint(data, **{name: getattr(data, name) for name in names})
