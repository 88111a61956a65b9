"""Loads data of the user's own (`OwnDataConfig`): an iterator that stores its position."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mtf.data.examples import Example
from mtf.data.packing import HostBatch, OpenRow, Packer, Row, to_batch
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    IteratorState,
    Shard,
    StreamsIterator,
)
from mtf.data.settings import OwnDataConfig
from mtf.errors import RunError, UserError
from mtf.text.features import encode_feature

EVALUATION = "held_out"

_METHODS = ("get_state", "set_state")
_EXAMPLE = "{'inputs': …, 'targets': …}, each a text or a sequence of token ids"


def make_train_iterator(data: OwnDataConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.loaders.make_train_iterator`."""
    return OwnBatches(data, shard, prefetch)


def evaluation_parts(data: OwnDataConfig) -> EvaluationParts:
    """Returns `held_out`, if there is data to evaluate; see `mtf.loaders`."""
    make = data.evaluation
    if make is None:
        return {}

    def read() -> Iterator[Example]:
        for number, item in enumerate(_iterable("data.evaluation", make())):
            yield _example(data, item, f"data.evaluation, example {number}")

    return {EVALUATION: [read]}


def check(data: OwnDataConfig, batch_size: int) -> str:
    """See `mtf.loaders.check`; makes the iterator, but reads nothing from it."""
    _stored(_open(data, Shard(batch_size)).get_state())
    return _name(data.train)


def provenance(data: OwnDataConfig) -> dict[str, Any]:
    """See `mtf.loaders.provenance`."""
    evaluation = None if data.evaluation is None else _name(data.evaluation)
    return {"train": _name(data.train), "evaluation": evaluation}


class OwnBatches(StreamsIterator):
    """Batches of a user's iterator over examples, which are packed, or over batches.

    The state has the iterator's state and the examples of the open rows.
    """

    def __init__(self, data: OwnDataConfig, shard: Shard, prefetch: int):
        self._own, self._shard = data, shard
        self._iterator = _open(data, shard)
        self._packer = Packer(data.task_feature_lengths, data.pack)
        self._num_read = 0
        # The same features and shapes as of other data.
        self._like = to_batch([], data.task_feature_lengths, len(shard.rows), data.pack)
        _stored(self._iterator.get_state())
        super().__init__({}, data, "", prefetch)

    def get_state(self) -> IteratorState:
        """See `BatchIterator`."""
        state, open_rows = self._state["iterator"], self._state["open"]
        own = {
            "iterator": _stored(state),
            "open": [[[e.inputs.tolist(), e.targets.tolist()] for e in row] for row in open_rows],
        }
        return {"num_shards": self._shard.num_shards, str(self._shard.shard_id): own}

    def set_state(self, state: IteratorState) -> None:
        """See `BatchIterator`; raises UserError for another number of shards."""
        num_shards = self._shard.num_shards
        if state.get("num_shards") != num_shards:
            raise UserError(
                "the data position in the checkpoint is that of data of one's own in "
                f"{state.get('num_shards', 'no')} parts, but now there are {num_shards}. Resume "
                "with as many processes as before"
            )
        own = state[str(self._shard.shard_id)]
        self._cancel()
        self._iterator.set_state(_loaded(own["iterator"]))
        self._packer.open_rows = []
        for stored in own["open"]:
            row = OpenRow()
            for inputs, targets in stored:
                row.add(Example(np.array(inputs, np.int32), np.array(targets, np.int32)), ())
            self._packer.open_rows.append(row)
        self._state = self._streams_state()

    def _streams_state(self) -> IteratorState:
        rows = [list(row.examples) for row in self._packer.open_rows]
        return {"iterator": self._iterator.get_state(), "open": rows}

    def _make(self) -> tuple[HostBatch, IteratorState]:
        item = self._next()
        if isinstance(item, Mapping) and "decoder_target_tokens" in item:
            return self._checked(item), self._streams_state()
        rows: list[Row] = []
        while True:
            row = self._packer.add(_example(self._own, item, f"data.train, item {self._num_read}"))
            if row is not None:
                rows.append(row)
            if len(rows) == len(self._shard.rows):
                break
            item = self._next()
        batch = to_batch(rows, self._own.task_feature_lengths, len(rows), self._own.pack)
        return batch, self._streams_state()

    def _next(self) -> Any:
        try:
            item = next(self._iterator)
        except StopIteration:
            raise RunError(
                f"data.train: {_name(self._own.train)} ended after {self._num_read} items; "
                "expected an endless iterator, which starts over at its end (Grain: .repeat())"
            ) from None
        self._num_read += 1
        return item

    def _checked(self, batch: Mapping[str, Any]) -> HostBatch:
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        found = {name: value.shape for name, value in arrays.items()}
        expected = {name: value.shape for name, value in self._like.items()}
        if found != expected:
            raise UserError(
                f"data.train, item {self._num_read}: a batch has {_shapes(found, expected)}; "
                f"expected {_shapes(expected, found)}"
            )
        return arrays


def _shapes(shapes: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns the features that are not the same in `other`, with their shapes."""
    shown = [f"{name} {shape}" for name, shape in shapes.items() if other.get(name) != shape]
    return ", ".join(shown) or "nothing else"


def _open(data: OwnDataConfig, shard: Shard) -> Any:
    """Returns the user's iterator; raises UserError if it cannot store its position."""
    made = data.train(shard_index=shard.shard_id, shard_count=shard.num_shards)
    iterator = iter(_iterable("data.train", made))
    missing = [name for name in _METHODS if not callable(getattr(iterator, name, None))]
    if missing:
        raise UserError(
            f"data.train: {_name(data.train)} returned a {type(made).__name__}, whose iterator has "
            f"no {' and no '.join(missing)}; expected an iterator that returns and restores its "
            "position, such as that of a grain.MapDataset"
        )
    return iterator


def _iterable(setting: str, made: Any) -> Iterable[Any]:
    if not isinstance(made, Iterable):
        raise UserError(
            f"{setting}: the function returned a {type(made).__name__}; expected an iterable"
        )
    return made


def _example(data: OwnDataConfig, item: Any, where: str) -> Example:
    """Returns an example; raises UserError if it has other content than expected."""
    if not isinstance(item, Mapping) or not {"inputs", "targets"} <= {*item}:
        found = f"the keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else "no keys"
        raise UserError(f"{where}: a {type(item).__name__} with {found}; expected {_EXAMPLE}")
    ids = {}
    for name in ("inputs", "targets"):
        value, length = item[name], data.task_feature_lengths[name]
        is_text = isinstance(value, str)
        add_eos = is_text and (name == "targets" or data.inputs_add_eos)
        if not is_text:
            value = np.asarray(value)
            if value.ndim != 1 or (value.size and not np.issubdtype(value.dtype, np.integer)):
                found = f"{value.dtype} of shape {value.shape}"
                raise UserError(f"{where}: {name} is {found}; expected {_EXAMPLE}")
            if value.size and not 0 <= value.min() <= value.max() < data.vocabulary.vocab_size:
                raise UserError(
                    f"{where}: {name} has ids from {value.min()} to {value.max()}; the vocabulary "
                    f"has 0 to {data.vocabulary.vocab_size - 1}"
                )
        ids[name] = encode_feature(data.vocabulary, value, add_eos=add_eos, max_length=length)
    return Example(**ids)


def _stored(state: Any) -> Any:
    """Returns a position as JSON values."""
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        return {"json": json.loads(json.dumps(state))}
    except TypeError as error:
        raise UserError(
            f"data.train: get_state returned a {type(state).__name__} that cannot be stored "
            f"({error}); expected bytes, or dicts, lists, texts and numbers"
        ) from None


def _loaded(stored: Mapping[str, Any]) -> Any:
    return base64.b64decode(stored["base64"]) if "base64" in stored else stored["json"]


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # functools.partial
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
