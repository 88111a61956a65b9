"""Turns documents and pairs into examples of token ids.

Examples belong to an endless sequence of groups. Each group consists either of several concatenated
documents or of one pair. Group numbers continue across epochs. Each example is identified by a
cursor, which is a tuple of a few integers. A resumed run continues at a cursor, so it does not
repeat any examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mtf.base.errors import UserError
from mtf.data.randomness import Purpose, permutation, random_bits
from mtf.data.settings import TextConfig, TextFilesConfig
from mtf.data.sources.text_files import open_examples
from mtf.data.text.features import encode_feature
from mtf.data.text.normalization import normalize

Cursor = tuple[int, ...]


class Example(NamedTuple):
    """The token ids of inputs and targets, including EOS, as int32 arrays of shape (length,)."""

    inputs: np.ndarray
    targets: np.ndarray


class ExampleSource(Protocol):
    """A source that reads examples by cursor.

    Attributes:
      num_groups: number of groups in an epoch.
    """

    num_groups: int

    def start(self, group: int) -> Cursor:
        """Returns the cursor of the first example of a group."""
        return (group,)

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """Returns the example at a cursor, and the cursor of the group's next example.

        The next cursor is None at the end of the group. The example is None if the group contains
        no more tokens.
        """


@dataclass(frozen=True)
class Order:
    """The order of documents or pairs in each epoch.

    Attributes:
      num_items: number of documents or pairs.
      seed: seed for shuffling.
      shuffle: whether every epoch has a new random order; if not, the order is 0 … num_items - 1.
      to_id: function that maps the numbers 0 … num_items - 1 to indices of documents or pairs.
    """

    num_items: int
    seed: int
    shuffle: bool
    to_id: Callable[[np.ndarray], np.ndarray] = np.asarray

    def ids(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Returns the indices at positions [start, stop) of an epoch; fewer at the epoch's end."""
        if not self.shuffle:
            return self.to_id(np.arange(start, min(stop, self.num_items)))
        return self.to_id(permutation(self.num_items, self.seed, epoch, Purpose.ORDER)[start:stop])


class TextDataset:
    """A dataset of text files, divided into training examples and held-out examples.

    Attributes:
      content: hash of the text.
      fingerprint: string that consists of `content` and the settings that determine the examples.
      num_training: number of training documents or pairs.
      held_out: sorted indices of the held-out documents or pairs.
    """

    def __init__(self, data: TextFilesConfig):
        """Opens the files and the vocabulary; raises UserError if they cannot be used."""
        self._data = data
        if data.vocabulary.eos_id < 0:
            raise UserError("data.vocabulary: the SentencePiece model has no EOS; use one with EOS")
        self._examples = open_examples(
            data.patterns or None, allow_empty_targets=data.allow_empty_targets
        )
        if self._examples.kind == "documents":
            data.check_objective(data.vocabulary.vocab_size)
        num_examples = len(self._examples)
        # Hold out at most a tenth of the examples, but at least one if there are two or more.
        num_held_out = min(data.num_held_out, max(num_examples // 10, min(1, num_examples - 1)))
        chosen = permutation(num_examples, data.seed, 0, Purpose.HELD_OUT)[:num_held_out]
        self.held_out = np.sort(chosen)
        self.num_training = num_examples - num_held_out
        self.content = self._examples.fingerprint
        self.fingerprint = fingerprint(data, text=self.content, num_training=self.num_training)

    def training(self) -> ExampleSource:
        """Returns a new source of the training examples."""
        # A training example's index is its number plus the number of held-out indices before it.
        shifts = self.held_out - np.arange(len(self.held_out))

        def to_id(numbers: np.ndarray) -> np.ndarray:
            return numbers + np.searchsorted(shifts, numbers, side="right")

        order = Order(self.num_training, self._data.seed, self._data.shuffle, to_id)
        return self._source(order, Purpose.NOISE)

    def evaluation(self) -> ExampleSource:
        """Returns a source of the held-out examples, in file order."""
        order = Order(len(self.held_out), self._data.seed, False, self.held_out.__getitem__)
        return self._source(order, Purpose.EVALUATION)

    def _source(self, order: Order, noise: Purpose) -> ExampleSource:
        read = self._examples.__getitem__
        if self._examples.kind == "pairs":
            return PairSource(self._data, read, order)
        return DocumentSource(self._data, read, order, noise)


def fingerprint(data: TextConfig, **content: object) -> str:
    """Returns `name=value; …` for `content` and for the settings that determine the examples."""
    content["vocabulary"] = data.vocabulary.fingerprint()
    for name in ("task_feature_lengths", "objective", "inputs_add_eos", "normalization"):
        content[name] = getattr(data, name)
    return "; ".join(f"{name}={value}" for name, value in content.items())


class PairSource(ExampleSource):
    """A source whose examples are pairs. Each group is one pair, and its cursor is (group,)."""

    def __init__(self, data: TextConfig, read: Callable[[int], Any], order: Order):
        self.num_groups = order.num_items
        self._data, self._read, self._order = data, read, order

    def read(self, cursor: Cursor) -> tuple[Example, None]:
        """See `ExampleSource`."""
        epoch, position = divmod(cursor[0], self.num_groups)
        (index,) = self._order.ids(epoch, position, position + 1)
        data, pair = self._data, self._read(index)

        def ids(name: str, add_eos: bool) -> np.ndarray:
            text, length = getattr(pair, name), data.task_feature_lengths[name]
            text = normalize(text, data.normalization)
            return encode_feature(data.vocabulary, text, add_eos=add_eos, max_length=length)

        return Example(ids("inputs", data.inputs_add_eos), ids("targets", True)), None


class DocumentSource(ExampleSource):
    """A source whose examples are segments of concatenated documents.

    Each group consists of `merge_documents` documents. A cursor specifies the start and the number
    of a segment as (group, document in the group, token in the document, segment in the group).
    """

    def __init__(self, data: TextConfig, read: Callable[[int], Any], order: Order, noise: Purpose):
        """Initializes the source; `read(index)` returns the text or token ids of a document."""
        self._group_size = data.objective.merge_documents
        self.num_groups = -(-order.num_items // self._group_size)
        self._data, self._read, self._order, self._noise = data, read, order, noise
        # Sentinel ids count down from the first; a tokenizer may have further tokens after it.
        self._vocab_size = data.vocabulary.sentinel(0) + 1
        self._lengths = data.check_objective(self._vocab_size)
        self._group: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))
        self._document: tuple[int, int, np.ndarray] = (-1, -1, np.empty(0, np.int32))

    def start(self, group: int) -> Cursor:
        """See `ExampleSource`."""
        return (group, 0, 0, 0)

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """See `ExampleSource`."""
        group, document, offset, segment = cursor
        num_documents = len(self._ids(group))
        parts: list[np.ndarray] = []
        missing = num_tokens = self._lengths.num_tokens
        while missing and document < num_documents:
            part = self._tokens(group, document)[offset : offset + missing]
            parts.append(part)
            missing -= len(part)
            offset += len(part)
            if missing:
                document, offset = document + 1, 0
        if missing == num_tokens:
            return None, None
        following = None if missing else (group, document, offset, segment + 1)
        return self._example(np.concatenate(parts), group, segment), following

    def _example(self, tokens: np.ndarray, group: int, segment: int) -> Example:
        data = self._data
        epoch, position = divmod(group, self.num_groups)
        num_bits = data.objective.bits_per_token * len(tokens)
        bits = random_bits(num_bits, self._order.seed, epoch, self._noise, position, segment)
        inputs, targets = data.objective.apply(tokens, self._lengths, self._vocab_size, bits)
        return Example(
            encode_feature(data.vocabulary, inputs, add_eos=data.inputs_add_eos),
            encode_feature(data.vocabulary, targets, add_eos=True),
        )

    def _ids(self, group: int) -> np.ndarray:
        """Returns the indices of a group's documents."""
        if self._group[0] != group:
            epoch, position = divmod(group, self.num_groups)
            start = position * self._group_size
            self._group = (group, self._order.ids(epoch, start, start + self._group_size))
        return self._group[1]

    def _tokens(self, group: int, document: int) -> np.ndarray:
        """Returns the token ids, without padding, of a document or a random chunk of a long one."""
        if self._document[:2] != (group, document):
            data, content = self._data, self._read(self._ids(group)[document])
            if isinstance(content, str):
                content = normalize(content, data.normalization)
            tokens = encode_feature(data.vocabulary, content, add_eos=False)
            size = data.objective.max_document_tokens
            if len(tokens) > size:
                epoch, position = divmod(group, self.num_groups)
                index = position * self._group_size + document
                bits = random_bits(1, self._order.seed, epoch, Purpose.CHUNK, index)
                chunk = int(bits[0]) % -(-len(tokens) // size)
                tokens = tokens[chunk * size : (chunk + 1) * size]
            self._document = (group, document, tokens[tokens != data.vocabulary.pad_id])
        return self._document[2]
