"""Our tasks as SeqIO's: sources, preprocessors, mixtures. Needs the extra `seqio`.

`mtf.tasks.seqio_registry` is where to enter.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from mtf.data.denoising import corrupt
from mtf.data.objectives import Objective, SpanCorruption, span_corruption_lengths
from mtf.data.randomness import Purpose, random_bits
from mtf.data.vocabularies import ByteVocabulary, Vocabulary
from mtf.errors import UserError
from mtf.prompts.templates import Templates, load_templates
from mtf.tasks.mixtures import mixture
from mtf.tasks.sources import MissingDatasetError, Rows, open_split
from mtf.tasks.t0 import MAX_EXAMPLES_PER_DATASET

MT5_PREFIX = "mt5_"
# Rows of a source that are one part of it for SeqIO's Beam cacher, and parts at most.
ROWS_PER_SHARD = 10_000
MAX_SHARDS = 64

_ORIGINAL_VOCABULARIES = {
    "t5": "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model",
    "mt5": "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
}


class TaskSource(seqio.DataSource):
    """The examples of one of our tasks, rendered as they are read.

    Any number of readers can share a split: each gets every num_shards-th row.
    """

    def __init__(self, task: Any, data_dir: str | os.PathLike[str] | None):
        """`task` is of `mtf.tasks`; nothing is opened before it is used."""
        super().__init__(splits=())
        self._task = task
        self._data_dir = data_dir
        self._rows: dict[str, Rows] = {}

    @functools.cached_property
    def splits(self) -> Sequence[str]:
        """Those of the task's splits that there is data for.

        Raises:
          MissingDatasetError: there is none at all.
        """
        found = []
        missing = None
        for split in self._task.splits:
            try:
                self.rows(split)
                found.append(split)
            except MissingDatasetError as error:
                missing = missing or error
        if missing is not None and not found:
            raise missing
        return tuple(found)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: any reader can skip the rows of the others."""
        return True

    def rows(self, split: str) -> Rows:
        """Returns the rows of a split; raises MissingDatasetError where there are none."""
        if split not in self._rows:
            source_split = self._task.source_split(split)
            self._rows[split] = open_split(
                self._task.dataset, self._task.subset, source_split, data_dir=self._data_dir
            )
        return self._rows[split]

    def num_input_examples(self, split: str) -> int:
        """Returns the number of rows, of which not each need be an example."""
        return len(self.rows(split))

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns names of the parts that SeqIO's Beam cacher works on."""
        num_shards = min(MAX_SHARDS, max(1, self.num_input_examples(split) // ROWS_PER_SHARD))
        return [f"{split}-{index}-of-{num_shards}" for index in range(num_shards)]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the examples of a shard of a split, in the order of its rows.

        `shuffle` and `seed` change nothing: SeqIO shuffles what comes out of the task.
        """
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        examples = functools.partial(self._examples, split, index, num_shards)
        signature = _signature(self._task)
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    def _examples(self, split: str, index: int, num_shards: int) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.rows(split)):
            if number % num_shards == index:
                yield from self._task.row_examples(row, number, split)


def build(
    name: str,
    vocabulary: Vocabulary | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    templates: str | os.PathLike[str] | Templates | None = None,
) -> tuple[seqio.Task | seqio.Mixture, dict[str, str]]:
    """Returns a mixture or a task by its name, as SeqIO's; and what tells each from others.

    Nothing is registered. Arguments and errors are those of `seqio_registry.register`. Of a mixture
    that is only evaluated, tasks without data are left out, with a message.
    """
    if not isinstance(templates, Templates) and templates is not None:
        templates = load_templates(templates)
    found = mixture(name, templates)
    if vocabulary is None:
        described, vocab = _original_vocabulary(found.vocabulary)
    else:
        described, vocab = vocabulary.fingerprint(), seqio_vocabulary(vocabulary)
    where = f"vocabulary {described}, mirror {data_dir}"
    is_task = [task.name for task, _ in found.tasks] == [name]
    prefix = MT5_PREFIX if found.vocabulary == "mt5" and not is_task else ""
    rated = [
        (_task(prefix + task.name, task, vocab, data_dir), rate)
        for task, rate in found.tasks
        if is_task or _has_data_or_is_trained_on(task, data_dir)
    ]
    identities = {
        prefix + task.name: f"{where}, definition {task.fingerprint}" for task, _ in found.tasks
    }
    if is_task:
        return rated[0][0], identities
    if not rated:
        raise MissingDatasetError(f"mixture {name}: there is data for none of its tasks")
    identities[name] = f"{where}, definition {found.fingerprint}"
    rates = [(task, _num_examples if rate is None else rate) for task, rate in rated]
    return seqio.Mixture(name, rates), identities


def seqio_vocabulary(vocabulary: Vocabulary) -> seqio.Vocabulary:
    """Returns SeqIO's vocabulary with the same ids."""
    if isinstance(vocabulary, ByteVocabulary):
        return seqio.ByteVocabulary(extra_ids=vocabulary.extra_ids)
    path = os.path.expanduser(vocabulary.path)
    return seqio.SentencePieceVocabulary(path, extra_ids=vocabulary.extra_ids)


def _original_vocabulary(name: str) -> tuple[str, seqio.Vocabulary]:
    if name not in _ORIGINAL_VOCABULARIES:
        raise UserError(f"the {name} vocabulary has no public address; name a file of it")
    path = _ORIGINAL_VOCABULARIES[name]
    # Both models have their extra ids as pieces.
    return path, seqio.SentencePieceVocabulary(path)


def _has_data_or_is_trained_on(task: Any, data_dir: str | os.PathLike[str] | None) -> bool:
    if task.kind != "rank":
        return True
    try:
        return bool(TaskSource(task, data_dir).splits)
    except MissingDatasetError as error:
        print(f"{task.name} is left out: {error}", file=sys.stderr)
        return False


def _num_examples(task: seqio.Task) -> float:
    split = "train" if "train" in task.splits else task.splits[0]
    rate: float = seqio.mixing_rate_num_examples(
        task, maximum=MAX_EXAMPLES_PER_DATASET, split=split
    )
    return rate


def _task(
    name: str, task: Any, vocabulary: seqio.Vocabulary, data_dir: str | os.PathLike[str] | None
) -> seqio.Task:
    tokenised = [seqio.preprocessors.tokenize]
    if task.kind == "documents":
        preprocessors = [
            *tokenised,
            seqio.CacheDatasetPlaceholder(),
            functools.partial(apply_objective, objective=task.objective),
            seqio.preprocessors.append_eos_after_trim,
        ]
    else:
        preprocessors = [
            *tokenised,
            seqio.preprocessors.append_eos,
            seqio.CacheDatasetPlaceholder(),
        ]
    return seqio.Task(
        name,
        source=TaskSource(task, data_dir),
        output_features={
            "inputs": seqio.Feature(vocabulary, add_eos=task.inputs_add_eos),
            "targets": seqio.Feature(vocabulary, add_eos=task.targets_add_eos),
        },
        preprocessors=preprocessors,
        postprocess_fn=_postprocess(task),
    )


def _postprocess(task: Any) -> Callable[..., Any] | None:
    if task.kind == "generate":
        return lambda text, **_: task.postprocess(text)
    if task.kind == "rank":
        # What a metric of rank classification takes as its targets.
        return lambda _, example, **__: (
            tuple(example["idx"]),
            example["is_correct"],
            example["weight"],
        )
    return None


def _signature(task: Any) -> dict[str, tf.TensorSpec]:
    text = tf.TensorSpec((), tf.string)
    if task.kind == "documents":
        return {"targets": text}
    signature = {"inputs": text, "targets": text}
    if task.kind == "rank":
        signature["idx"] = tf.TensorSpec((2,), tf.int32)
        signature["is_correct"] = tf.TensorSpec((), tf.bool)
        signature["weight"] = tf.TensorSpec((), tf.float32)
    elif task.has_answer_choices:
        signature["answer_choices"] = tf.TensorSpec((None,), tf.string)
    return signature


def apply_objective(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature],
    objective: Objective,
) -> tf.data.Dataset:
    """Makes inputs and targets of tokenised documents (feature `targets`), without EOS.

    T5's steps: a chunk of a long document, concatenation, segments, noise. The noise is made by
    `mtf.data.denoising`, from SeqIO's seeds.
    """
    assert isinstance(objective, SpanCorruption)
    num_tokens, _ = span_corruption_lengths(
        sequence_length["inputs"], objective.noise_density, objective.mean_noise_span_length
    )
    vocab_size = output_features["targets"].vocabulary.vocab_size
    size = objective.max_document_tokens

    def chunk(example: Mapping[str, tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
        tokens = example["targets"]
        num_chunks = (tf.size(tokens) - 1) // size + 1
        start = size * tf.random.stateless_uniform((), seed, 0, num_chunks, tf.int32)
        return tokens[start : start + size]

    def join(documents: tf.RaggedTensor) -> tf.Tensor:
        tokens = documents.flat_values
        return tf.boolean_mask(tokens, tokens != 0)

    def cut(tokens: tf.Tensor) -> tf.data.Dataset:
        starts = tf.range(0, tf.size(tokens), num_tokens)
        return tf.data.Dataset.from_tensor_slices(starts).map(
            lambda start: tokens[start : start + num_tokens]
        )

    def noise(tokens: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        def with_numpy(ids: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            bits = random_bits(len(ids), int(seeds[0]), int(seeds[1]), Purpose.NOISE)
            inputs, targets = corrupt(ids, objective, vocab_size, bits)
            return inputs.astype(np.int32), targets.astype(np.int32)

        made = tf.numpy_function(with_numpy, (tokens, seed), (tf.int32, tf.int32))
        for part in made:
            part.set_shape((None,))
        return dict(zip(("inputs", "targets"), made, strict=True))

    dataset = dataset.filter(lambda example: tf.size(example["targets"]) > 0)
    dataset = seqio.map_over_dataset(chunk, num_seeds=1)(dataset)
    dataset = dataset.ragged_batch(objective.merge_documents).map(join).flat_map(cut)
    return seqio.map_over_dataset(noise, num_seeds=1)(dataset)
