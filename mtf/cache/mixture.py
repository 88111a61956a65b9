"""A cached mixture as a sequence without end, read by the number of a unit.

`Mixing` says which task a unit comes from, and Grain's index shuffle which example of the task it
is in which epoch. Both are functions of the number, so any place is as near as any other.
"""

from __future__ import annotations

import functools
import itertools
import json
import resource
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mtf.cache.format import TaskInfo
from mtf.cache.reader import SplitReader, TokenCache
from mtf.data.examples import Cursor, DocumentSource, Example, ExampleSource, Order
from mtf.data.mixing import BLOCK_UNITS, Mixing
from mtf.data.randomness import Purpose, permutation, random_bits
from mtf.data.row_streams import all_examples
from mtf.data.settings import TaskMixtureConfig, TextConfig
from mtf.errors import UserError, did_you_mean_split
from mtf.tasks.objectives import BertStyle, IidDenoising, Objective, PrefixLM, SpanCorruption
from mtf.text.features import encode_feature

MAX_EXAMPLES_PER_TASK = 500_000
# Units that are read at once, for all rows of the process together: so each file is asked for
# several records at once. A row has no more and no fewer than these of them.
_NUM_AHEAD = 4096
_MAX_AHEAD, _MIN_AHEAD = 64, 8
_NUM_AT_ONCE = 1024
_NUM_OTHER_FILES = 512
_SHUFFLE_ROUNDS = 4
# Grain's shuffle works on blocks of 16 bits and tries until it meets a number in the range: for few
# examples a table is faster. It is made in well under a millisecond.
_MAX_TABLE = 1 << 12
_NUM_TABLES = 16


class NoExamplesError(UserError):
    """No task of a mixture has the split that is asked for."""


class CachedTask:
    """The examples of a split of a task, in a new order in every epoch.

    Attributes:
      info: the description of the task.
      num_examples, num_units: examples in the split, or documents.
      rate: to which the number of its examples in the mixture is proportional.
    """

    def __init__(
        self,
        info: TaskInfo,
        reader: SplitReader,
        rate: int | None,
        data: TaskMixtureConfig,
        split: str,
    ):
        self.info = info
        self.num_examples = self.num_units = len(reader)
        self.rate = min(len(reader), MAX_EXAMPLES_PER_TASK) if rate is None else rate
        self._reader = reader
        self._data = data
        self._order = _Order(len(reader), f"{data.seed}/{info.name}/{split}", data.shuffle)

    def read(self, units: np.ndarray) -> list[Example]:
        """Returns examples by their numbers in the sequence of all epochs of this task."""
        numbers = [self._order.number(unit) for unit in units.tolist()]
        lengths = self._data.task_feature_lengths
        encode = functools.partial(encode_feature, self._data.vocabulary)
        return [
            Example(
                encode(inputs, add_eos=self.info.inputs_add_eos, max_length=lengths["inputs"]),
                encode(targets, add_eos=self.info.targets_add_eos, max_length=lengths["targets"]),
            )
            for inputs, targets in self._reader.pairs(numbers)
        ]

    def document_source(self, training: bool) -> ExampleSource:
        """Returns what the task's objective makes of its documents.

        Without `training` they are in the order of the cache, always with the same noise. Raises
        UserError if the lengths or the vocabulary are too small for the objective.
        """
        text = TextConfig(
            vocabulary=self._data.vocabulary,
            task_feature_lengths=self._data.task_feature_lengths,
            objective=objective_of(self.info),
            inputs_add_eos=self.info.inputs_add_eos,
        )

        def document(index: int) -> np.ndarray:
            (example,) = self._reader.examples([int(index)])
            tokens: np.ndarray = example["targets"]
            return tokens

        shuffle = training and self._data.shuffle
        order = _DocumentOrder(self.num_examples, self._order.seed, shuffle)
        noise = Purpose.NOISE if training else Purpose.EVALUATION
        return DocumentSource(text, document, order, noise)


class _Order:
    """Which example comes at a place of the sequence of all epochs."""

    def __init__(self, num_examples: int, name: str, shuffle: bool):
        self.seed = zlib.crc32(name.encode())
        self._num_examples = num_examples
        self._shuffle = shuffle
        # Rows of a batch are not all in the same epoch.
        self._table = functools.lru_cache(maxsize=_NUM_TABLES)(self._make_table)

    def number(self, place: int) -> int:
        epoch, position = divmod(place, self._num_examples)
        if not self._shuffle:
            return position
        if self._num_examples <= _MAX_TABLE:
            return int(self._table(epoch)[position])
        return shuffled(position, self._num_examples, self.seed + epoch)

    def _make_table(self, epoch: int) -> np.ndarray:
        bits = random_bits(self._num_examples, self.seed, epoch, Purpose.ORDER)
        return np.argsort(bits, kind="stable").astype(np.uint16)


class _DocumentOrder(Order):
    """An order that needs no time and memory in proportion to the number of documents."""

    def ids(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """See `Order`."""
        places = range(start, min(stop, self.num_items))
        if not self.shuffle:
            return np.array(places)
        return np.array([shuffled(place, self.num_items, self.seed + epoch) for place in places])


def shuffled(place: int, num_places: int, seed: int) -> int:
    """Returns which of `num_places` comes at a place of their random order; in constant time."""
    # Not at the top: Grain takes a second to import, and --check does not need it.
    from grain.experimental import index_shuffle

    number: int = index_shuffle(
        place, max_index=num_places - 1, seed=seed % 2**32, rounds=_SHUFFLE_ROUNDS
    )
    return number


def objective_of(info: TaskInfo) -> Objective:
    """Returns the objective of a task of documents."""
    fields = dict(info.objective or {})
    name = fields.pop("type", None)
    known = {cls.__name__: cls for cls in (SpanCorruption, IidDenoising, BertStyle, PrefixLM)}
    if name not in known:
        raise UserError(f"task {info.name}: its cache has an unknown objective {name!r}")
    objective: Objective = known[name](**fields)
    return objective


def open_cache(data: TaskMixtureConfig) -> TokenCache:
    """Opens a cache; raises UserError if it is missing, or has another format or vocabulary."""
    name, vocabulary = data.mixture_or_task_name, data.vocabulary
    if data.cache_dir is None:
        raise UserError(
            "data.cache_dir is not set; expected the directory of a token cache, which "
            f"`python -m mtf.cache '{name}' --output DIR` makes"
        )
    cache = TokenCache(data.cache_dir, name)
    cache.check_format()
    cache.check_vocabulary(vocabulary.fingerprint(), getattr(vocabulary, "path", "byt5"))
    return cache


class CachedMixture:
    """A split of a mixture in a cache, opened.

    Attributes:
      tasks: those that have examples in the split.
      mixing: of the tasks.
      fingerprint: hash of all that decides which examples come in which order.
    """

    def __init__(self, data: TaskMixtureConfig, split: str):
        """Opens the cache; raises NoExamplesError if no task has the split."""
        name = data.mixture_or_task_name
        self.data = data
        self.cache = open_cache(data)
        self.mixture = self.cache.mixture(name)
        self.tasks: list[CachedTask] = []
        for task, rate in self.mixture.tasks.items():
            info = self.cache.task(task)
            if split in info.splits and info.splits[split].num_examples:
                reader = self.cache.split(info, split)
                self.tasks.append(CachedTask(info, reader, rate, data, split))
        if not self.tasks:
            infos = map(self.cache.task, self.mixture.tasks)
            splits = list(dict.fromkeys(s for i in infos for s in i.splits))
            raise NoExamplesError(
                f"the cache {self.cache.path} has no examples of {name}, split {split}; it has "
                f"{', '.join(splits) or 'none'}.{did_you_mean_split(split, splits)}"
            )
        _allow_open_files(sum(len(task.info.splits[split].shards) for task in self.tasks))
        self.num_units = sum(task.num_examples for task in self.tasks)
        tasks = [[t.info.name, t.rate, asdict(t.info.splits[split])] for t in self.tasks]
        identity = [self.cache.info.vocabulary, data.seed, data.shuffle, tasks]
        self.fingerprint = f"{zlib.crc32(json.dumps(identity).encode()):08x}"
        self.mixing = Mixing([task.rate for task in self.tasks])
        # Rows drift apart, so that several blocks are in use at a time.
        self._block_order = functools.lru_cache(maxsize=256)(
            lambda block: permutation(BLOCK_UNITS, data.seed, block, Purpose.MIXING)
        )

    @property
    def has_documents(self) -> bool:
        """Whether an objective makes the examples of some tasks."""
        return any(task.info.kind == "documents" for task in self.tasks)

    def read(self, units: np.ndarray) -> list[Example]:
        """Returns the examples of some units of the mixed sequence; there are no documents."""
        if len(self.tasks) > 1:
            # `mtf.data.mixing.scattered` of each: rows must not meet a rhythm of the mixing.
            blocks, places = np.divmod(units, BLOCK_UNITS)
            found, numbers = np.unique(blocks, return_inverse=True)
            orders = np.stack([self._block_order(block) for block in found.tolist()])
            units = blocks * BLOCK_UNITS + orders[numbers, places]
        return self._read(self.mixing, units)

    def _read(self, mixing: Mixing, units: np.ndarray) -> list[Example]:
        numbers, places = mixing.locate_many(units)
        order = np.argsort(numbers, kind="stable")
        tasks, starts = np.unique(numbers[order], return_index=True)
        found: list[Any] = [None] * len(order)
        for task, chosen in zip(tasks.tolist(), np.split(order, starts[1:]), strict=True):
            examples = self.tasks[task].read(places[chosen])
            for index, example in zip(chosen.tolist(), examples, strict=True):
                found[index] = example
        return found

    def all_examples(self) -> Iterator[Example]:
        """Yields every example once, those of different tasks among each other."""
        documents = [task for task in self.tasks if task.info.kind == "documents"]
        for task in documents:
            yield from all_examples(task.document_source(training=False))
        if not documents:
            # Rates that are the numbers of examples use up all tasks within one round.
            mixing = Mixing([task.num_examples for task in self.tasks])
            for start in range(0, self.num_units, _NUM_AT_ONCE):
                stop = min(start + _NUM_AT_ONCE, self.num_units)
                yield from self._read(mixing, np.arange(start, stop))

    def provenance(self) -> dict[str, Any]:
        """Returns what tells this data from other data."""
        return {
            "mixture": self.mixture.name,
            "data": self.fingerprint,
            "templates": self.mixture.fingerprint,
            "vocabulary": self.cache.info.vocabulary,
            "seed": self.cache.info.seed,
            "tasks": {
                task.info.name: {
                    "rate": task.rate,
                    "num_examples": task.num_examples,
                    "fingerprint": task.info.fingerprint,
                }
                for task in self.tasks
            },
            "absent": list(self.mixture.absent),
        }


def row_sources(
    sequence: CachedMixture | CachedTask, num_rows: int, stride: int
) -> list[RowSource]:
    """Returns sources for rows of a batch that read ahead together, each every `stride`th unit."""
    sources: list[RowSource] = []
    sources += [RowSource(sequence, stride, sources) for _ in range(num_rows)]
    return sources


class RowSource(ExampleSource):
    """The examples of one row of every batch; a cursor is (unit,)."""

    def __init__(
        self, sequence: CachedMixture | CachedTask, stride: int, together: Sequence[RowSource]
    ):
        """`together` are the sources of the process, this one included, that read ahead as one."""
        self.num_units = sequence.num_units
        self._sequence = sequence
        self._stride = stride
        self._together = together
        self._next = -1  # The unit after those that are read ahead.
        self._ahead: deque[Example] = deque()

    def start(self, unit: int) -> Cursor:
        """Returns the cursor of a unit, from which this row goes on."""
        if unit != self._next - self._stride * len(self._ahead):
            self._next = unit
            self._ahead.clear()
        return (unit,)

    def read_again(self, cursors: Sequence[Cursor]) -> list[Example]:
        """See `ExampleSource`."""
        return self._sequence.read(np.array([unit for (unit,) in cursors]))

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """Returns the example of a unit."""
        if cursor[0] != self._next - self._stride * len(self._ahead):
            # Not the next one of this row, but one of a row that was open when it was left.
            return self._sequence.read(np.array(cursor))[0], None
        if not self._ahead:
            self._read_ahead()
        return self._ahead.popleft(), None

    def _read_ahead(self) -> None:
        """Fills up all rows that have read half of what was ahead."""
        num_ahead = min(max(_NUM_AHEAD // len(self._together), _MIN_AHEAD), _MAX_AHEAD)
        sources = [
            source
            for source in self._together
            if source is self or (source._next >= 0 and len(source._ahead) <= num_ahead // 2)
        ]
        units = [
            source._next + source._stride * np.arange(num_ahead - len(source._ahead))
            for source in sources
        ]
        examples = iter(self._sequence.read(np.concatenate(units)))
        for source, mine in zip(sources, units, strict=True):
            source._ahead.extend(itertools.islice(examples, len(mine)))
            source._next += source._stride * len(mine)


def _allow_open_files(number: int) -> None:
    """Raises this process's limit of open files, usually 1024, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _NUM_OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
