"""Passes the batches of a recipe's data loader to T5X in the order in which mtf uses them."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from clu.data.dataset_iterator import ArraySpec, DatasetIterator

from mtf.base.writing import write_atomically
from mtf.data import loaders
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator
from mtf.data.settings import AnyData
from mtf.storage import as_path


def _batch_shapes(data: AnyData, num_rows: int) -> dict[str, ArraySpec]:
    """Returns the shape and dtype of each T5X feature for batches of `num_rows` rows."""
    lengths = data.task_feature_lengths
    encoder, decoder = ["encoder_input_tokens"], ["decoder_input_tokens", "decoder_target_tokens"]
    decoder += ["decoder_loss_weights"]
    if data.pack:
        encoder += ["encoder_segment_ids", "encoder_positions"]
        decoder += ["decoder_segment_ids", "decoder_positions"]
    return {
        name: ArraySpec(np.dtype(np.int32), (num_rows, lengths[feature]))
        for names, feature in ((encoder, "inputs"), (decoder, "targets"))
        for name in names
    }


class TrainIterator(DatasetIterator):
    """An iterator over training batches, whose state T5X saves in checkpoints."""

    def __init__(self, batches: BatchIterator, element_spec: Mapping[str, ArraySpec]):
        self._batches = batches
        self._element_spec = element_spec

    def __next__(self) -> HostBatch:
        return next(self._batches)

    @property
    def element_spec(self) -> Mapping[str, ArraySpec]:
        """The shape and dtype of each feature."""
        return self._element_spec

    def save(self, filename: Any) -> None:
        """Writes the state after the last returned batch to a file, as JSON."""
        write_atomically(as_path(str(filename)), json.dumps(self._batches.get_state()))

    def restore(self, filename: Any) -> None:
        """Restores the state that `save` wrote."""
        self._batches.set_state(json.loads(as_path(str(filename)).read_text(encoding="utf-8")))

    def load(self, filename: Any) -> None:
        """Restores the state that `save` wrote; T5X calls this method."""
        self.restore(filename)


@dataclasses.dataclass
class EvalBatches:
    """An iterable over the batches of an evaluation. Every iteration yields the same batches."""

    batches: Callable[[], Iterator[HostBatch]]
    num_batches: int | None
    element_spec: Mapping[str, ArraySpec]

    def __iter__(self) -> Iterator[HostBatch]:
        return itertools.islice(self.batches(), self.num_batches)


def get_dataset(
    cfg: Any, shard_id: int, num_shards: int, feature_converter_cls: Any, *, data: AnyData
) -> TrainIterator:
    """Returns the training batches of a recipe's data. Replaces T5X's `utils.get_dataset`."""
    del feature_converter_cls  # The loader already yields the features that T5X needs.
    shard = {"batch_size": cfg.batch_size, "shard_id": shard_id, "num_shards": num_shards}
    batches = loaders.make_train_iterator(data, **shard)
    return TrainIterator(batches, _batch_shapes(data, cfg.batch_size // num_shards))


def get_training_eval_datasets(
    cfg: Any,
    shard_id: int,
    num_shards: int,
    eval_steps: int | None,
    feature_converter_cls: Any,
    *,
    data: AnyData,
) -> dict[str, EvalBatches]:
    """Returns a dict mapping the name of each evaluation to its batches.

    Replaces T5X's `utils.get_training_eval_datasets`.
    """
    del feature_converter_cls
    shard = {"batch_size": cfg.batch_size, "shard_id": shard_id, "num_shards": num_shards}
    shapes = _batch_shapes(data, cfg.batch_size // num_shards)
    return {
        name: EvalBatches(batches, eval_steps, shapes)
        for name, batches in loaders.make_evaluations(data, **shard).items()
        if next(iter(batches()), None) is not None
    }


def summarize_nothing(model_dir: str, summary_writer: Any, step: int) -> None:
    """Creates the directory but no summary, because mtf stores the config in t5x_config.json."""
    as_path(model_dir).mkdir(parents=True, exist_ok=True)
