"""Registers tokenized examples and their metrics with SeqIO, for use by T5X's evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from mtf.data.seqio_tasks.tasks import seqio_vocabulary
from mtf.data.text.vocabularies import ByteVocabulary, Vocabulary


class TokenizedExample(NamedTuple):
    """The token ids of an example, including EOS, and the texts that T5X adds to its results."""

    inputs: Sequence[int] | np.ndarray
    targets: Sequence[int] | np.ndarray
    inputs_text: str = ""
    targets_text: str = ""


class TokenizedTask(NamedTuple):
    """A task with at most one function that computes metrics and returns them as a dict.

    Attributes:
      name: name that SeqIO's evaluator reports.
      examples: the tokenized examples.
      predictions: function that takes the predicted texts of all examples.
      scores: function that takes the log-likelihoods of the targets of all examples.
    """

    name: str
    examples: Sequence[TokenizedExample]
    predictions: Callable[[Sequence[str]], Mapping[str, float]] | None = None
    scores: Callable[[Sequence[float]], Mapping[str, float]] | None = None


def register(name: str, tasks: Sequence[TokenizedTask], vocabulary: Vocabulary, split: str) -> str:
    """Registers a mixture of the tasks, replacing any mixture with this name; returns `name`."""
    is_bytes = isinstance(vocabulary, ByteVocabulary)
    of_seqio = _ByteVocabulary(vocabulary.extra_ids) if is_bytes else seqio_vocabulary(vocabulary)
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
        for inputs, targets, *texts in task.examples:
            values = (np.asarray(inputs, np.int32), np.asarray(targets, np.int32), *texts)
            yield dict(zip(signature, values, strict=True))

    def dataset(
        split: str, shuffle_files: bool = False, seed: int | None = None
    ) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    # SeqIO passes predictions or scores to a metric according to the names of its parameters.
    metric_fns: list[Any] = []
    if (of_predictions := task.predictions) is not None:
        metric_fns.append(lambda targets, predictions: dict(of_predictions(predictions)))
    if (of_scores := task.scores) is not None:
        metric_fns.append(lambda targets, scores: dict(of_scores(scores)))
    feature = seqio.Feature(vocabulary, add_eos=False)  # The ids include EOS.
    return seqio.Task(
        task.name,
        source=seqio.FunctionDataSource(dataset, splits=[split]),
        output_features={"inputs": feature, "targets": feature},
        preprocessors=[],
        postprocess_fn=lambda text, **_: text.strip(),
        metric_fns=metric_fns,
    )


class _ByteVocabulary(seqio.ByteVocabulary):
    """SeqIO's byte vocabulary, except that decoded texts contain sentinels, as they do in mtf."""

    def decode(self, ids: Any) -> str:
        """Returns the text up to the first EOS."""
        return ByteVocabulary(self.extra_ids).decode(np.asarray(ids).tolist())

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes an eager tensor of ids; T5X calls this for each prediction."""
        return tf.constant(self.decode(ids))
