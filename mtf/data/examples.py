"""Turns documents and pairs into examples of token ids.

Examples form an endless sequence of units: a unit is a group of concatenated documents, or one
pair. Units are numbered across epochs. A cursor, a few integers, determines an example, so a
resumed run reads nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mtf.data.denoising import BITS_PER_TOKEN, apply_objective
from mtf.data.randomness import Purpose, permutation, random_bits
from mtf.data.settings import TextConfig, TextFilesConfig
from mtf.errors import UserError
from mtf.sources.text_files import open_examples
from mtf.text.features import encode_feature
from mtf.text.normalization import normalize

Cursor = tuple[int, ...]


class Example(NamedTuple):
    """Token ids of inputs and targets, including EOS, each (length,) int32."""

    inputs: np.ndarray
    targets: np.ndarray


class ExampleSource(Protocol):
    """Examples by cursor.

    Attributes:
      num_units: number of units in an epoch.
    """

    num_units: int

    def start(self, unit: int) -> Cursor:
        """Returns the cursor of the first example of a unit."""
        return (unit,)

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """Returns the example at a cursor and the next cursor in the unit; None at its end."""

    def read_again(self, cursors: Sequence[Cursor]) -> list[Example]:
        """Returns the examples at the cursors."""
        found = (self.read(cursor)[0] for cursor in cursors)
        return [example for example in found if example is not None]


@dataclass(frozen=True)
class Order:
    """The order of documents or pairs in each epoch.

    Attributes:
      num_items: number of documents or pairs.
      seed: seed of the shuffle.
      shuffle: whether every epoch has a new random order; otherwise it is always 0 … num_items - 1.
      to_id: maps the numbers 0 … num_items - 1 to indices of documents or pairs.
    """

    num_items: int
    seed: int
    shuffle: bool
    to_id: Callable[[np.ndarray], np.ndarray] = np.asarray

    def ids(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Returns the indices at positions `start` to `stop` - 1 of an epoch, up to its end."""
        if not self.shuffle:
            return self.to_id(np.arange(start, min(stop, self.num_items)))
        return self.to_id(permutation(self.num_items, self.seed, epoch, Purpose.ORDER)[start:stop])


class TextDataset:
    """Text files, opened and divided into training and held-out examples.

    Attributes:
      content: hash of the text.
      fingerprint: hash of the text, and the settings that determine the examples.
      num_training: number of training documents or pairs.
      held_out: sorted indices of the held-out documents or pairs.
    """

    def __init__(self, data: TextFilesConfig):
        """Opens the files and the vocabulary; raises UserError if they cannot be used."""
        self._data = data
        if data.vocabulary.eos_id < 0:
            raise UserError("data.vocabulary: the SentencePiece model has no EOS; use another")
        self._examples = open_examples(
            data.patterns or None, allow_empty_targets=data.allow_empty_targets
        )
        if self._examples.kind == "documents":
            data.check_objective(data.vocabulary.vocab_size)
        num_examples = len(self._examples)
        # At most a tenth, but at least one if there are two or more.
        num_held_out = min(data.num_held_out, max(num_examples // 10, min(1, num_examples - 1)))
        chosen = permutation(num_examples, data.seed, 0, Purpose.HELD_OUT)[:num_held_out]
        self.held_out = np.sort(chosen)
        self.num_training = num_examples - num_held_out
        self.content = self._examples.fingerprint
        self.fingerprint = fingerprint(data, text=self.content, num_training=self.num_training)

    def training(self) -> ExampleSource:
        """Returns a new source of the training examples."""
        # A number among the rest is shifted by the number of held-out indices before it.
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
            return _Pairs(self._data, read, order)
        return DocumentSource(self._data, read, order, noise)


def fingerprint(data: TextConfig, **content: object) -> str:
    """Returns `content` and the settings that determine the examples, as `name=value; …`."""
    return "; ".join(
        f"{name}={value}" for name, value in (content | data.example_settings()).items()
    )


class _Pairs(ExampleSource):
    """Pairs as examples: a unit is one pair, and a cursor is (unit,)."""

    def __init__(self, data: TextFilesConfig, read: Callable[[int], Any], order: Order):
        self.num_units = order.num_items
        self._data = data
        self._read = read
        self._order = order

    def read(self, cursor: Cursor) -> tuple[Example, None]:
        epoch, position = divmod(cursor[0], self.num_units)
        (index,) = self._order.ids(epoch, position, position + 1)
        data, pair = self._data, self._read(index)
        ends = {"inputs": data.inputs_add_eos, "targets": True}
        features = {
            name: encode_feature(
                data.vocabulary,
                normalize(getattr(pair, name), data.normalization),
                add_eos=add_eos,
                max_length=data.task_feature_lengths[name],
            )
            for name, add_eos in ends.items()
        }
        return Example(**features), None


class DocumentSource(ExampleSource):
    """Segments of concatenated documents as examples.

    A unit is a group of `merge_documents` documents. A cursor is the start of a segment and its
    number: (unit, document in the group, token in the document, segment in the group).
    """

    def __init__(self, data: TextConfig, read: Callable[[int], Any], order: Order, noise: Purpose):
        """`read` returns the text or the token ids of the document with an index."""
        self._group_size = data.objective.merge_documents
        self.num_units = -(-order.num_items // self._group_size)
        self._data = data
        self._read = read
        self._order = order
        self._noise = noise
        self._vocab_size = data.vocabulary.vocab_size
        self._lengths = data.check_objective(self._vocab_size)
        self._group: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))
        self._document: tuple[int, int, np.ndarray] = (-1, -1, np.empty(0, np.int32))

    def start(self, unit: int) -> Cursor:
        """See `ExampleSource`."""
        return (unit, 0, 0, 0)

    def read(self, cursor: Cursor) -> tuple[Example | None, Cursor | None]:
        """See `ExampleSource`."""
        unit, document, offset, segment = cursor
        num_documents = len(self._ids(unit))
        parts: list[np.ndarray] = []
        missing = num_tokens = self._lengths.num_tokens
        while missing and document < num_documents:
            part = self._tokens(unit, document)[offset : offset + missing]
            parts.append(part)
            missing -= len(part)
            offset += len(part)
            if missing:
                document, offset = document + 1, 0
        if missing == num_tokens:
            return None, None
        following = None if missing else (unit, document, offset, segment + 1)
        return self._example(np.concatenate(parts), unit, segment), following

    def _example(self, tokens: np.ndarray, unit: int, segment: int) -> Example:
        data = self._data
        epoch, group = divmod(unit, self.num_units)
        num_bits = BITS_PER_TOKEN * len(tokens)
        bits = random_bits(num_bits, self._order.seed, epoch, self._noise, group, segment)
        inputs, targets = apply_objective(
            tokens, data.objective, self._lengths, self._vocab_size, bits
        )
        return Example(
            encode_feature(data.vocabulary, inputs, add_eos=data.inputs_add_eos),
            encode_feature(data.vocabulary, targets, add_eos=True),
        )

    def _ids(self, unit: int) -> np.ndarray:
        if self._group[0] != unit:
            epoch, group = divmod(unit, self.num_units)
            start = group * self._group_size
            self._group = (unit, self._order.ids(epoch, start, start + self._group_size))
        return self._group[1]

    def _tokens(self, unit: int, document: int) -> np.ndarray:
        """Returns the ids of a document, or of one chunk of a long document, without padding."""
        if self._document[:2] != (unit, document):
            data, content = self._data, self._read(self._ids(unit)[document])
            if isinstance(content, str):
                content = normalize(content, data.normalization)
            tokens = encode_feature(data.vocabulary, content, add_eos=False)
            size = data.objective.max_document_tokens
            if len(tokens) > size:
                epoch, group = divmod(unit, self.num_units)
                position = group * self._group_size + document
                bits = random_bits(1, self._order.seed, epoch, Purpose.CHUNK, position)
                chunk = int(bits[0]) % -(-len(tokens) // size)
                tokens = tokens[chunk * size : (chunk + 1) * size]
            self._document = (unit, document, tokens[tokens != data.vocabulary.pad_id])
        return self._document[2]
