"""Loads custom data (`CustomDataConfig`) from an iterator that the user provides."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mtf.base.errors import RunError, UserError
from mtf.data.examples import Example
from mtf.data.packing import HostBatch, Packer, Row, to_batch
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    IteratorState,
    Shard,
    StreamsIterator,
)
from mtf.data.settings import CustomDataConfig
from mtf.data.text.features import encode_feature

EVALUATION = "held_out"
_EXAMPLE = "{'inputs': …, 'targets': …}, where each value is a text or a sequence of token ids"


def make_train_iterator(data: CustomDataConfig, shard: Shard, prefetch: int = 2) -> BatchIterator:
    """See `mtf.data.loaders.make_train_iterator`."""
    return CustomBatches(data, shard, prefetch)


def evaluation_parts(data: CustomDataConfig) -> EvaluationParts:
    """Returns a dict with the evaluation `held_out`; it is empty if `data.evaluation` is None."""
    make = data.evaluation
    if make is None:
        return {}

    def read() -> Iterator[Example]:
        for number, item in enumerate(_iterable("data.evaluation", make())):
            yield _example(data, item, f"data.evaluation, example {number}")

    return {EVALUATION: read}


def check(data: CustomDataConfig, batch_size: int) -> str:
    """See `mtf.data.loaders.check`. Creates the iterator, but does not read any items from it."""
    _stored(_open(data, Shard(batch_size)).get_state())
    return _name(data.train)


def provenance(data: CustomDataConfig) -> dict[str, Any]:
    """See `mtf.data.loaders.provenance`."""
    evaluation = None if data.evaluation is None else _name(data.evaluation)
    return {"train": _name(data.train), "evaluation": evaluation}


class CustomBatches(StreamsIterator):
    """An iterator over batches of the examples that a user's iterator yields.

    Its state consists of the state of the user's iterator and the examples in the open rows.
    """

    def __init__(self, data: CustomDataConfig, shard: Shard, prefetch: int):
        self._custom, self._shard = data, shard
        self._iterator = _open(data, shard)
        self._packer = Packer(data.task_feature_lengths, data.pack)
        self._num_read = 0
        super().__init__({}, data, "", prefetch)

    def set_state(self, state: IteratorState) -> None:
        """See `BatchIterator`; raises UserError if the number of shards has changed."""
        num_shards = self._shard.num_shards
        if state.get("num_shards") != num_shards:
            raise UserError(
                "the data position in the checkpoint is for custom data that was read in "
                f"{state.get('num_shards', 'no')} parts, but now there are {num_shards}. Resume "
                "with as many processes as before"
            )
        mine = state[str(self._shard.shard_id)]
        self._cancel()
        self._iterator.set_state(_loaded(mine["iterator"]))
        self._packer.set_state(mine["open"])
        self._state = self._streams_state()

    def _streams_state(self) -> IteratorState:
        stored = _stored(self._iterator.get_state())
        mine = {"iterator": stored, "open": self._packer.get_state()}
        return {"num_shards": self._shard.num_shards, str(self._shard.shard_id): mine}

    def _make(self) -> tuple[HostBatch, IteratorState]:
        data, rows = self._custom, list[Row]()
        while len(rows) < len(self._shard.rows):
            item = self._next()
            row = self._packer.add(_example(data, item, f"data.train, item {self._num_read}"))
            if row is not None:
                rows.append(row)
        batch = to_batch(rows, data.task_feature_lengths, len(rows), data.pack)
        return batch, self._streams_state()

    def _next(self) -> Any:
        try:
            item = next(self._iterator)
        except StopIteration:
            raise RunError(
                f"data.train: {_name(self._custom.train)} ended after {self._num_read} items; "
                "expected an endless iterator that starts again at its end (with Grain: .repeat())"
            ) from None
        self._num_read += 1
        return item


def _open(data: CustomDataConfig, shard: Shard) -> Any:
    """Returns the user's iterator; raises UserError if it cannot store its position."""
    made = data.train(shard_index=shard.shard_id, shard_count=shard.num_shards)
    iterator = iter(_iterable("data.train", made))
    methods = ("get_state", "set_state")
    missing = [name for name in methods if not callable(getattr(iterator, name, None))]
    if missing:
        raise UserError(
            f"data.train: {_name(data.train)} returned a {type(made).__name__}, whose iterator has "
            f"no {' and no '.join(missing)}; expected an iterator that can store and "
            "restore its position, such as the iterator of a grain.MapDataset"
        )
    return iterator


def _iterable(setting: str, made: Any) -> Iterable[Any]:
    if not isinstance(made, Iterable):
        raise UserError(
            f"{setting}: the function returned a {type(made).__name__}; expected an iterable"
        )
    return made


def _example(data: CustomDataConfig, item: Any, where: str) -> Example:
    """Converts an item to an example; raises UserError if the item is invalid."""
    if not isinstance(item, Mapping) or not {"inputs", "targets"} <= {*item}:
        found = f"the keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else "no keys"
        raise UserError(f"{where} is a {type(item).__name__} with {found}; expected {_EXAMPLE}")
    ids = {}
    for name in ("inputs", "targets"):
        value, length = item[name], data.task_feature_lengths[name]
        is_text = isinstance(value, str)
        add_eos = is_text and (name == "targets" or data.inputs_add_eos)
        if not is_text:
            value = np.asarray(value)
            if value.ndim != 1 or (value.size and not np.issubdtype(value.dtype, np.integer)):
                found = f"type {value.dtype} and shape {value.shape}"
                raise UserError(f"{where}: {name} has {found}; expected {_EXAMPLE}")
            if value.size and not 0 <= value.min() <= value.max() < data.vocabulary.vocab_size:
                raise UserError(
                    f"{where}: {name} has ids from {value.min()} to {value.max()}; the vocabulary "
                    f"has ids from 0 to {data.vocabulary.vocab_size - 1}"
                )
        ids[name] = encode_feature(data.vocabulary, value, add_eos=add_eos, max_length=length)
    return Example(**ids)


def _stored(state: Any) -> Any:
    """Converts the state of the user's iterator to JSON values."""
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        return {"json": json.loads(json.dumps(state))}
    except TypeError as error:
        raise UserError(
            f"data.train: get_state returned a {type(state).__name__} that cannot be stored "
            f"({error}); expected bytes or a value made of dicts, lists, strings and numbers"
        ) from None


def _loaded(stored: Mapping[str, Any]) -> Any:
    return base64.b64decode(stored["base64"]) if "base64" in stored else stored["json"]


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # unwraps functools.partial
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
