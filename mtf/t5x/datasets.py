"""The batches of a recipe's own loader, for T5X: the same as with mtf, in the same order."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from clu.data.dataset_iterator import ArraySpec, DatasetIterator

from mtf import loaders
from mtf.data.packing import HostBatch
from mtf.data.row_streams import BatchIterator
from mtf.data.settings import AnyData
from mtf.errors import UserError
from mtf.storage import as_path
from mtf.text.vocabularies import Vocabulary
from mtf.writing import write_atomically


def _batch_shapes(data: AnyData, num_rows: int) -> dict[str, ArraySpec]:
    """Returns the shapes of T5X's features of `data`."""
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
    """The training batches, with a position that T5X saves in its checkpoints."""

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
        """Writes the position after the last returned batch, as JSON."""
        write_atomically(as_path(str(filename)), json.dumps(self._batches.get_state()))

    def restore(self, filename: Any) -> None:
        """Continues after the position that `save` wrote."""
        self._batches.set_state(json.loads(as_path(str(filename)).read_text(encoding="utf-8")))

    def load(self, filename: Any) -> None:
        """Same as `restore`; T5X calls it by this name."""
        self.restore(filename)


class EvalBatches:
    """The batches of an evaluation, the same in every pass."""

    def __init__(
        self,
        batches: Callable[[], Iterator[HostBatch]],
        num_batches: int | None,
        element_spec: Mapping[str, ArraySpec],
    ):
        self._batches = batches
        self._num_batches = num_batches
        self.element_spec = element_spec

    def __iter__(self) -> Iterator[HostBatch]:
        return itertools.islice(self._batches(), self._num_batches)


def get_dataset(
    cfg: Any, shard_id: int, num_shards: int, feature_converter_cls: Any, *, data: AnyData
) -> TrainIterator:
    """Returns the training batches of a recipe's data (T5X: `utils.get_dataset`)."""
    del feature_converter_cls  # The loader makes T5X's features itself.
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
    """Returns name → batches of each evaluation (T5X: `utils.get_training_eval_datasets`)."""
    del feature_converter_cls
    shard = {"batch_size": cfg.batch_size, "shard_id": shard_id, "num_shards": num_shards}
    shapes = _batch_shapes(data, cfg.batch_size // num_shards)
    return {
        name: EvalBatches(batches, eval_steps, shapes)
        for name, batches in loaders.make_evaluations(data, **shard).items()
        if next(iter(batches()), None) is not None
    }


def verify_matching_vocabs(cfg: Any, model: Any, *, vocabulary: Vocabulary) -> None:
    """Checks that the model has the vocabulary of the data; raises UserError if not."""
    from mtf.seqio.tasks import seqio_vocabulary

    expected = seqio_vocabulary(vocabulary)
    if (model.input_vocabulary, model.output_vocabulary) != (expected, expected):
        raise UserError(
            f"The vocabulary of the model is not that of {cfg.mixture_or_task_name}: "
            f"{model.input_vocabulary} and {model.output_vocabulary}, expected {expected}."
        )


def summarize_nothing(model_dir: str, summary_writer: Any, step: int) -> None:
    """Creates the directory, but writes nothing: mtf stores the config in t5x_config.json."""
    as_path(model_dir).mkdir(parents=True, exist_ok=True)
