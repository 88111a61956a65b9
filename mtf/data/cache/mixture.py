"""Reads a cached mixture as an endless sequence of examples with random access.

`Mixing` computes which task a position belongs to, and Grain's index shuffle computes which of the
task's examples is at that position.
"""

from __future__ import annotations

import functools
import itertools
import json
import resource
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mtf.base.errors import UserError, did_you_mean_split
from mtf.data.cache.format import SplitInfo, TaskInfo
from mtf.data.cache.memory import MemoryCache, open_memory
from mtf.data.cache.reader import SplitReader, TokenCache
from mtf.data.examples import Cursor, DocumentSource, Example, ExampleSource, Order
from mtf.data.mixing import Mixing, scattered
from mtf.data.mixtures import open_mixture
from mtf.data.randomness import Purpose, permutation
from mtf.data.row_streams import all_examples
from mtf.data.settings import TaskMixtureConfig, TextConfig
from mtf.data.tasks import objectives
from mtf.data.tasks.missing import check_missing
from mtf.data.tasks.mixtures import made_for
from mtf.data.tasks.registry import import_module
from mtf.data.tasks.t0 import MAX_EXAMPLES_PER_DATASET
from mtf.data.text.features import encode_feature
from mtf.data.text.vocabularies import RELEASED_MODELS

# A process reads about this number of examples at once for all its rows, so that it reads several
# of them from each file. The number of examples for each row is limited to the range below.
_NUM_AHEAD = 4096
_MAX_AHEAD, _MIN_AHEAD = 64, 8
_NUM_AT_ONCE = 1024
_NUM_OTHER_FILES = 512
_SHUFFLE_ROUNDS = 4
# Grain's shuffle works on blocks of 16 bits and repeats until the result is in range. If there
# are few examples, a table is faster, and computing it takes well under a millisecond.
_MAX_TABLE = 1 << 12


class NoExamplesError(UserError):
    """Raised if no task of a mixture has examples in the split."""


class CachedTask:
    """The examples in a split of a task; if shuffled, they have a new order in every epoch.

    Attributes:
      info: description of the task.
      num_examples: number of examples or documents in the split.
      rate: rate of the task in the mixture.
    """

    def __init__(
        self,
        info: TaskInfo,
        reader: SplitReader,
        rate: float | None,
        data: TaskMixtureConfig,
        split: str,
    ):
        self.info = info
        self.num_examples = len(reader)
        self.rate = min(len(reader), MAX_EXAMPLES_PER_DATASET) if rate is None else rate
        self._reader = reader
        self._data = data
        seed = zlib.crc32(f"{data.seed}/{info.name}/{split}".encode())
        self._order = _Order(len(reader), seed, data.shuffle)

    def read(self, positions: Sequence[int]) -> list[Example]:
        """Returns the examples at the given positions, which are counted across epochs."""
        numbers = [self._order.number(position) for position in positions]
        ends = {"inputs": self.info.inputs_add_eos, "targets": self.info.targets_add_eos}
        lengths, vocabulary = self._data.task_feature_lengths, self._data.vocabulary
        return [
            Example(
                *(
                    encode_feature(vocabulary, example[name], add_eos=end, max_length=lengths[name])
                    for name, end in ends.items()
                )
            )
            for example in self._reader.examples(numbers)
        ]

    def document_source(self, training: bool) -> ExampleSource:
        """Returns a source of the examples that the task's objective makes from its documents.

        If `training` is False, examples are in the order of the cache and always have the same
        noise. Raises UserError if the lengths or the vocabulary are too small for the objective.
        """
        if self._data.module is not None:  # It may define the objective.
            import_module(self._data.module)
        where = f"task {self.info.name}: the cache names"
        text = TextConfig(
            vocabulary=self._data.vocabulary,
            task_feature_lengths=self._data.task_feature_lengths,
            objective=objectives.from_json(self.info.objective or {}, where),
            inputs_add_eos=self.info.inputs_add_eos,
        )

        def document(index: int) -> np.ndarray:
            return self._reader.examples([int(index)])[0]["targets"]

        order = replace(self._order, shuffle=training and self._order.shuffle)
        noise = Purpose.NOISE if training else Purpose.EVALUATION
        return DocumentSource(text, document, order, noise)


class _Order(Order):
    """An `Order` that computes each index separately and stores only small permutations."""

    def ids(self, epoch: int, start: int, stop: int) -> np.ndarray:
        positions = range(start, min(stop, self.num_items))
        if not self.shuffle:
            return np.array(positions)
        return np.array([shuffled(i, self.num_items, self.seed + epoch) for i in positions])

    def number(self, position: int) -> int:
        """Returns the index of the item at a position, which is counted across epochs."""
        epoch, position = divmod(position, self.num_items)
        if not self.shuffle:
            return position
        if self.num_items <= _MAX_TABLE:
            return int(permutation(self.num_items, self.seed, epoch, Purpose.ORDER)[position])
        return shuffled(position, self.num_items, self.seed + epoch)


def shuffled(position: int, num_items: int, seed: int) -> int:
    """Returns the index of the item at a position in a random order, in constant time."""
    # Importing Grain takes a second, and --check does not need it.
    from grain.experimental import index_shuffle

    seed %= 2**32
    return index_shuffle(position, max_index=num_items - 1, seed=seed, rounds=_SHUFFLE_ROUNDS)


def open_cache(data: TaskMixtureConfig) -> TokenCache:
    """Opens the cache; raises UserError if it is missing or its format or vocabulary is wrong."""
    vocabulary = data.vocabulary
    if len(data.cache_dirs) > 1:
        raise UserError(
            f"data.cache_dir lists {len(data.cache_dirs)} directories; expected one token cache "
            "(python -m mtf.cache can add mixtures to a cache)"
        )
    cache = TokenCache(data.cache_dirs[0], data.mixture_or_task_name, _options(data))
    if cache.info.format != "array_record":
        raise UserError(
            f"data.cache_dir: {cache.path} is in SeqIO's format; set data.loader='seqio' and "
            "data.use_cached=True, or write the cache again without --format seqio"
        )
    if (fingerprint := vocabulary.fingerprint()) != cache.info.vocabulary:
        raise UserError(
            f"data.vocabulary: the cache {cache.path} was made with {cache.info.vocabulary} "
            f"({cache.info.vocabulary_path}), not with {fingerprint} ({vocabulary.path}). "
            "Set data.vocabulary to the cache's vocabulary, or data.cache_dir to another cache"
        )
    return cache


def _options(data: TaskMixtureConfig) -> str:
    """Returns the options with which `mtf.cache` writes the cache that a config reads."""
    vocabulary = data.vocabulary
    options = "" if data.cache_dir is None else f" --output {data.cache_dirs[0]}"
    if vocabulary.path != RELEASED_MODELS.get(made_for(data.mixture_or_task_name)):
        options += f" --vocabulary {vocabulary.path} --extra-ids {vocabulary.extra_ids}"
    return options + (f" --module {data.module}" if data.module else "")


class CachedMixture:
    """A split of a mixture in a cache.

    Attributes:
      cache: the cache.
      tasks: tasks that have examples in the split; tasks with a rate of 0 come last.
      num_examples: number of examples or documents in the split.
      missing: dict that maps the name of each task that is not in the cache to the reason.
      without_split: names of the tasks in the cache that have no examples in the split, except
        tasks with a rate of 0, which are only evaluated.
      mixing: order in which the tasks with positive rates are interleaved.
      fingerprint: hash of everything that determines the examples and their order.
    """

    def __init__(self, data: TaskMixtureConfig, split: str):
        """Opens the cache.

        Raises NoExamplesError if no task has examples in the split, and UserError if any tasks are
        missing from the cache, unless `data.allow_missing_tasks` is set.
        """
        name = data.mixture_or_task_name
        self.data = data
        self._split = split
        self.cache: TokenCache | MemoryCache
        if data.loader == "memory":
            self.cache = open_memory(data, split)
        else:
            self.cache = open_cache(data)
        self.mixture = self.cache.mixture(name)
        self.missing = dict(self.mixture.absent)
        self.without_split: list[str] = []
        found: list[tuple[TaskInfo, float | None]] = []
        for task, rate in self.mixture.tasks.items():
            info = self.cache.find(task)
            if info is None:
                self.missing[task] = f"its directory {self.cache.path / task} is missing"
            else:
                found.append((info, rate))
        self.check_missing(self.missing)
        self.tasks: list[CachedTask] = []
        if data.task is not None and data.loader == "cache":
            definition, _ = open_mixture(data).tasks[0]
            if any(info.fingerprint != definition.fingerprint for info, _ in found):
                raise UserError(
                    f"data.task: the task {name} in the cache {data.cache_dir} was written with a "
                    "different dataset, inputs, targets, answer choices or EOS setting; set the "
                    "same values, or write the task again to another directory"
                )
        for info, rate in found:
            if split in info.splits and info.splits[split].num_examples:
                reader = self.cache.split(info, split)
                self.tasks.append(CachedTask(info, reader, rate, data, split))
            elif rate != 0:
                self.without_split.append(info.name)
        self.tasks.sort(key=lambda task: task.rate == 0)
        if not self.tasks:
            if isinstance(self.cache, MemoryCache) and split in self.cache.missing_splits:
                raise NoExamplesError(self.cache.missing_splits[split])
            splits = list(dict.fromkeys(s for info, _ in found for s in info.splits))
            others = f"; available splits: {', '.join(splits) or 'none'}."
            others += did_you_mean_split(split, splits)
            raise NoExamplesError(
                f"{self.cache.where} has no examples of {name} in split {split}"
                f"{'.' if split in splits else others}"
            )
        _allow_open_files(sum(len(task.info.splits[split].shards) for task in self.tasks))
        self.num_examples = sum(task.num_examples for task in self.tasks)
        tasks = [[t.info.name, t.rate, _identity(t.info.splits[split])] for t in self.tasks]
        identity = [self.cache.info.vocabulary, data.seed, data.shuffle, tasks]
        self.fingerprint = f"{zlib.crc32(json.dumps(identity).encode()):08x}"

    @functools.cached_property
    def mixing(self) -> Mixing:
        """The order in which tasks are interleaved; raises UserError if all rates are 0."""
        return Mixing([task.rate for task in self.tasks if task.rate])

    @property
    def num_tasks(self) -> int:
        """The number of tasks in the mixture, including missing tasks."""
        return len(self.mixture.tasks) + len(self.mixture.absent)

    @property
    def unused(self) -> dict[str, str]:
        """A dict that maps each task that has no examples in the split to the reason."""
        reason = f"its split {self._split} has no examples in {self.cache.where}"
        return self.missing | dict.fromkeys(self.without_split, reason)

    def check_missing(self, missing: Mapping[str, str]) -> None:
        """Raises UserError if any tasks are missing, unless `data.allow_missing_tasks` is set."""
        name = self.mixture.name
        if isinstance(self.cache, MemoryCache):
            advice = ""
        else:
            advice = f"To add them, run {self.cache.command(name)}, which keeps finished tasks."
        check_missing(name, self.num_tasks, missing, self.data.allow_missing_tasks, advice)

    def fetch(self) -> None:
        """Copies the split's files to this machine if the cache is in a store."""
        if isinstance(self.cache, TokenCache):
            tasks = [task.info for task in self.tasks]
            shards = {info.name: info.splits[self._split].shards for info in tasks}
            self.cache.fetch({f"{name}/{s.file}" for name in shards for s in shards[name]})

    @property
    def has_documents(self) -> bool:
        """Whether any task consists of documents."""
        return any(task.info.kind == "documents" for task in self.tasks)

    def read(self, positions: Sequence[int]) -> list[Example]:
        """Returns the examples at positions in the mixed sequence; does not support documents."""
        if len(self.tasks) > 1:
            positions = [scattered(position, self.data.seed) for position in positions]
        return self._read(self.mixing, positions)

    def _read(self, mixing: Mixing, positions: Iterable[int]) -> list[Example]:
        places = [mixing.locate(position) for position in positions]
        wanted: dict[int, list[int]] = {}
        for task, position in places:
            wanted.setdefault(task, []).append(position)
        read = {task: iter(self.tasks[task].read(each)) for task, each in wanted.items()}
        return [next(read[task]) for task, _ in places]

    def all_examples(self) -> Iterator[Example]:
        """Yields every example once, with the tasks interleaved.

        If any tasks consist of documents, only the examples of those tasks are yielded.
        """
        documents = [task for task in self.tasks if task.info.kind == "documents"]
        for task in documents:
            yield from all_examples(task.document_source(training=False))
        if not documents:
            # With these rates, all tasks end at the same time.
            mixing = Mixing([task.num_examples for task in self.tasks])
            for start in range(0, self.num_examples, _NUM_AT_ONCE):
                stop = min(start + _NUM_AT_ONCE, self.num_examples)
                yield from self._read(mixing, range(start, stop))

    def provenance(self) -> dict[str, Any]:
        """See `mtf.data.loaders.provenance`."""
        return {
            "mixture": self.mixture.name,
            "data": self.fingerprint,
            "templates": self.mixture.fingerprint,
            "vocabulary": self.cache.info.vocabulary,
            "seed": self.cache.info.seed,
            "inputs_add_eos": any(task.info.inputs_add_eos for task in self.tasks),
            "num_tasks": self.num_tasks,
            "missing_tasks": self.unused,
            "tasks": {
                task.info.name: {
                    "rate": task.rate,
                    "num_examples": task.num_examples,
                    "fingerprint": task.info.fingerprint,
                }
                for task in self.tasks
            },
        }


def row_sources(
    sequence: CachedMixture | CachedTask, num_rows: int, stride: int
) -> list[RowSource]:
    """Returns a source for each row of a process; the sources read ahead together."""
    sources: list[RowSource] = []
    sources += [RowSource(sequence, stride, sources) for _ in range(num_rows)]
    return sources


class RowSource(ExampleSource):
    """A source of the examples at every `stride`-th position, for one row of every batch.

    Each group consists of one example, and its cursor is (position,).
    """

    def __init__(
        self, sequence: CachedMixture | CachedTask, stride: int, siblings: Sequence[RowSource]
    ):
        """Initializes the source; `siblings` are it and the sources that read ahead with it."""
        self.num_groups = sequence.num_examples
        self._sequence = sequence
        self._stride = stride
        self._siblings = siblings
        self._next = -1  # the position after the examples that were read ahead
        self._ahead: deque[Example] = deque()

    def start(self, group: int) -> Cursor:
        """Returns the cursor of an example, and makes this row continue with that example."""
        if group != self._next - self._stride * len(self._ahead):
            self._next = group
            self._ahead.clear()
        return (group,)

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """See `ExampleSource`; the next cursor is always None."""
        if cursor[0] != self._next - self._stride * len(self._ahead):
            # The cursor is not the row's next one. It belongs to an open row of a resumed run.
            return self._sequence.read(cursor)[0], None
        if not self._ahead:
            self._read_ahead()
        return self._ahead.popleft(), None

    def _read_ahead(self) -> None:
        """Reads ahead for this row and for all rows with at most half of their read-ahead left."""
        num_ahead = min(max(_NUM_AHEAD // len(self._siblings), _MIN_AHEAD), _MAX_AHEAD)
        sources = [
            source
            for source in self._siblings
            if source is self or (source._next >= 0 and len(source._ahead) <= num_ahead // 2)
        ]
        numbers = [num_ahead - len(source._ahead) for source in sources]
        positions = [
            source._next + source._stride * i
            for source, number in zip(sources, numbers, strict=True)
            for i in range(number)
        ]
        examples = iter(self._sequence.read(positions))
        for source, number in zip(sources, numbers, strict=True):
            source._ahead.extend(itertools.islice(examples, number))
            source._next += source._stride * number


def _identity(split: SplitInfo) -> dict[str, Any]:
    """Returns the fields of a split and of its files as JSON values, without copying them."""
    return {**vars(split), "shards": [vars(shard) for shard in split.shards]}


def _allow_open_files(number: int) -> None:
    """Raises this process's limit on open files (usually 1024) as far as needed and permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _NUM_OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
