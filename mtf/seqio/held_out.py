"""Registers tokenized examples with SeqIO, with their metrics, for T5X's evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from mtf.seqio.tasks import seqio_vocabulary
from mtf.text.vocabularies import ByteVocabulary, Vocabulary


class Row(NamedTuple):
    """The token ids of an example, with EOS, and its texts, which T5X writes to its results."""

    inputs: Sequence[int] | np.ndarray
    targets: Sequence[int] | np.ndarray
    inputs_text: str = ""
    targets_text: str = ""


class TokenizedTask(NamedTuple):
    """A task with at most one of two functions that compute its metrics, metric → value.

    Attributes:
      rows: the examples.
      predictions: function of the predicted text of each row.
      scores: function of the log-likelihood of the targets of each row.
    """

    name: str
    rows: Sequence[Row]
    predictions: Callable[[Sequence[str]], Mapping[str, float]] | None = None
    scores: Callable[[Sequence[float]], Mapping[str, float]] | None = None


def register(name: str, tasks: Sequence[TokenizedTask], vocabulary: Vocabulary, split: str) -> str:
    """Registers a mixture of the tasks, which replaces an earlier one; returns its name."""
    of_seqio = _vocabulary(vocabulary)
    mixture = seqio.Mixture(name, [(_task(each, of_seqio, split), 1.0) for each in tasks])
    if name in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.remove(name)
    seqio.MixtureRegistry.add_provider(name, mixture)
    return name


def _task(task: TokenizedTask, vocabulary: seqio.Vocabulary, split: str) -> seqio.Task:
    texts = ("inputs_pretokenized", "targets_pretokenized")
    signature = {
        **dict.fromkeys(("inputs", "targets"), tf.TensorSpec((None,), tf.int32)),
        **dict.fromkeys(texts, tf.TensorSpec((), tf.string)),
    }

    def examples() -> Iterator[dict[str, Any]]:
        for row in task.rows:
            values = (*(np.asarray(ids, np.int32) for ids in row[:2]), *row[2:])
            yield dict(zip(signature, values, strict=True))

    def dataset(
        split: str, shuffle_files: bool = False, seed: int | None = None
    ) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    # SeqIO tells by the names of the arguments what a metric needs.
    def of_predictions(targets: Any, predictions: Sequence[str]) -> dict[str, float]:
        assert task.predictions is not None
        return dict(task.predictions(predictions))

    def of_scores(targets: Any, scores: Sequence[float]) -> dict[str, float]:
        assert task.scores is not None
        return dict(task.scores(scores))

    metric_fns: list[Any] = [of_predictions] if task.predictions is not None else []
    metric_fns += [of_scores] if task.scores is not None else []
    feature = seqio.Feature(vocabulary, add_eos=False)  # The rows have their EOS.
    return seqio.Task(
        task.name,
        source=seqio.FunctionDataSource(dataset, splits=[split]),
        output_features={"inputs": feature, "targets": feature},
        preprocessors=[],
        postprocess_fn=_stripped,
        metric_fns=metric_fns,
    )


class _ByteVocabulary(seqio.ByteVocabulary):
    """SeqIO's vocabulary, but decoded texts have sentinels, as in mtf."""

    def decode(self, ids: Any) -> str:
        """Returns the text up to the first EOS."""
        return ByteVocabulary(self.extra_ids).decode(np.asarray(ids).tolist())

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns `decode` of a tensor; T5X calls it with one prediction, outside of graphs."""
        return tf.constant(self.decode(ids))


def _vocabulary(vocabulary: Vocabulary) -> seqio.Vocabulary:
    if isinstance(vocabulary, ByteVocabulary):
        return _ByteVocabulary(vocabulary.extra_ids)
    return seqio_vocabulary(vocabulary)


def _stripped(text: str, example: Any = None, is_target: bool = False) -> str:
    return text.strip()
