"""Builds the SeqIO tasks and mixtures that `mtf.evaluation.seqio_registry` registers."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from mtf.base.errors import UserError
from mtf.data.randomness import Purpose, permutation, random_bits
from mtf.data.sources.datasets import DataDir, MissingDatasetError, Rows, Source, open_all
from mtf.data.tasks.mixtures import MT5_PREFIX, Mixture
from mtf.data.tasks.objectives import Objective
from mtf.data.tasks.t0 import MAX_EXAMPLES_PER_DATASET
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
)

# A function that returns the metric functions of a task.
MetricFns = Callable[[Task], Sequence[Any]]
# Number of records per shard, and maximum number of shards, for SeqIO's Beam cacher.
ROWS_PER_SHARD = 10_000
MAX_SHARDS = 64
# Number of records in a block. Blocks are shuffled, but the records within a block are not.
ROWS_PER_BLOCK = 5_000


class TaskSource(seqio.DataSource):
    """Renders the examples of a task when SeqIO reads them; each shard is a range of records."""

    def __init__(self, task: Task, opened: dict[Source, Rows | UserError], data_dir: DataDir):
        """Initializes the source, which shares the datasets in `opened` with other sources."""
        super().__init__(splits=())
        self.task, self._opened, self._data_dir = task, opened, data_dir

    def rows(self, split: str) -> Rows:
        """Returns the records of a split; raises MissingDatasetError if there are none."""
        key = self.task.source_of(split)
        if key not in self._opened:
            self._opened |= open_all([key], data_dir=self._data_dir)
        rows = self._opened[key]
        if isinstance(rows, UserError):
            raise rows
        return rows

    @functools.cached_property
    def with_data(self) -> tuple[str, ...]:
        """The splits that have data; raises MissingDatasetError if there are none."""
        found, missing = [], []
        for split in self.task.splits:
            try:
                self.rows(split)
                found.append(split)
            except MissingDatasetError as error:
                missing.append(error)
        if not found:
            raise missing[0]
        return tuple(found)

    @property
    def splits(self) -> Sequence[str]:
        """See `with_data`.

        If the task is used for training, "train" is included even if it has no data. Reading this
        split then fails; otherwise, SeqIO would train without the task.
        """
        trained_on = self.task.kind != "rank" and "train" in self.task.splits
        return tuple(dict.fromkeys([*["train"] * trained_on, *self.with_data]))

    @functools.cached_property
    def signature(self) -> dict[str, tf.TensorSpec]:
        """The types of the text features and, for ranked tasks, of idx, is_correct and weight."""
        names = ["targets"] if self.task.kind == "documents" else ["inputs", "targets"]
        features = dict.fromkeys(names, tf.TensorSpec((), tf.string))
        if self.task.kind == "rank":
            features |= {
                "idx": tf.TensorSpec((2,), tf.int32),
                "is_correct": tf.TensorSpec((), tf.bool),
                "weight": tf.TensorSpec((), tf.float32),
            }
        return features

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """Whether SeqIO may choose the shards; True, because reading can start at any record."""
        return True

    def num_input_examples(self, split: str) -> int:
        """Returns the number of records, some of which may yield no example."""
        return len(self.rows(split))

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the names of the shards that SeqIO's Beam cacher reads in parallel."""
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
        """Returns the examples in a shard of a split.

        If `shuffle` is True, shuffles blocks of records, because SeqIO's own shuffle buffer holds
        only a thousand examples.
        """
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        rows = self.rows(split)
        first, last = (len(rows) * part // num_shards for part in (index, index + 1))
        starts = np.arange(first, last, ROWS_PER_BLOCK)
        if shuffle:
            starts = starts[permutation(len(starts), seed or 0, 0, Purpose.ORDER)]

        def examples() -> Iterator[dict[str, Any]]:
            for start in starts.tolist():
                block = rows.rows(start, min(start + ROWS_PER_BLOCK, last))
                for number, row in enumerate(block, start):
                    for example in self.task.row_examples(row, number, split):
                        yield {name: example[name] for name in self.signature}

        return tf.data.Dataset.from_generator(examples, output_signature=self.signature)


class Built(NamedTuple):
    """An unregistered SeqIO mixture or task; fingerprints of it, its tasks and its vocabulary."""

    provider: seqio.Task | seqio.Mixture
    vocabulary: str
    fingerprints: dict[str, str]


def build(
    found: Mixture,
    vocabulary: Vocabulary | None = None,
    data_dir: DataDir = None,
    without: Collection[str] = (),
    *,
    use_cached: bool = False,
    metric_fns: MetricFns = lambda task: (),
) -> Built:
    """Builds a SeqIO mixture or task from an mtf mixture, omitting the tasks in `without`.

    `metric_fns` returns the metric functions of a task. See
    `mtf.evaluation.seqio_registry.register` for the other arguments and the errors.

    If `use_cached` is True, tasks have the splits of their SeqIO caches, and no dataset is opened.
    Otherwise, a ranked task is left out if its dataset is missing and `skippable_in_evaluation`,
    and the reason is printed.
    """
    name = found.name
    if vocabulary is None:
        if found.vocabulary not in RELEASED_MODELS:
            raise UserError(
                f"vocabulary: the {found.vocabulary} model is not public; pass the path of its file"
            )
        vocabulary = SentencePieceVocabulary(RELEASED_MODELS[found.vocabulary], extra_ids=0)
    described, vocab = vocabulary.fingerprint(), seqio_vocabulary(vocabulary)
    opened: dict[Source, Rows | UserError] = {}
    sources = {task.name: TaskSource(task, opened, data_dir) for task, _ in found.tasks}
    make = functools.partial(
        seqio_task,
        vocabulary=vocab,
        use_cached=use_cached,
        metric_fns=metric_fns,
    )
    if [task.name for task, _ in found.tasks] == [name]:
        [(task, _)] = found.tasks
        made = make(name, sources[name])
        return Built(made, described, {name: task.fingerprint})
    left_out = set(without)
    if not use_cached:
        left_out |= _without_data(s for name, s in sources.items() if name not in without)
    rates = []
    fingerprints = {name: found.fingerprint}
    for task, rate in found.tasks:
        if task.name not in left_out:
            # Tasks of mT5 need no prefix, because they exist only with mT5's vocabulary.
            prefix = MT5_PREFIX if task.vocabulary != found.vocabulary == "mt5" else ""
            made = make(prefix + task.name, sources[task.name])
            rates.append((made, _num_examples if rate is None else rate))
            fingerprints[made.name] = task.fingerprint
    if not rates:
        raise MissingDatasetError(f"mixture {name}: none of its tasks has a dataset available")
    return Built(seqio.Mixture(name, rates), described, fingerprints)


def seqio_vocabulary(vocabulary: Vocabulary) -> seqio.Vocabulary:
    """Returns the SeqIO vocabulary with the same ids; SeqIO has none for tokenizer.json."""
    if isinstance(vocabulary, ByteVocabulary):
        return seqio.ByteVocabulary(extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, TokenizerVocabulary):
        raise UserError(
            f"SeqIO cannot tokenize with {vocabulary.path}, because it has no vocabulary for the "
            "package tokenizers. Use data.loader='memory', or 'cache' with a cache that "
            "`python -m mtf.cache --vocabulary` wrote."
        )
    return seqio.SentencePieceVocabulary(str(vocabulary.file), extra_ids=vocabulary.num_added_ids)


def _without_data(sources: Iterable[TaskSource]) -> set[str]:
    """Returns the names of ranked tasks to leave out for lack of data, and prints the reasons."""
    reasons: dict[str, list[str]] = {}
    for source in sources:
        if source.task.kind == "rank":
            try:
                _ = source.with_data
            except MissingDatasetError as error:
                if error.skippable_in_evaluation:
                    reasons.setdefault(str(error), []).append(source.task.name)
    for reason, names in reasons.items():
        print(f"left out ({len(names)} tasks, such as {names[0]}): {reason}", file=sys.stderr)
    return set().union(*reasons.values())


def _num_examples(made: CachedSeqioTask) -> float:
    splits = made.splits if made.use_cached else made.source.with_data
    split, maximum = splits[0], MAX_EXAMPLES_PER_DATASET
    return seqio.mixing_rate_num_examples(made, maximum=maximum, split=split)


class CachedSeqioTask(seqio.Task):
    """A task whose cache directory may lack the prefix `mt5_`, as in caches written by `mtf.cache`.

    Attributes:
      use_cached: whether `splits` lists the splits of the cache instead of those of the dataset.
    """

    use_cached = False

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have data."""
        folder = self.cache_dir if self.use_cached else None
        if folder is None:
            found: Sequence[str] = super().splits
            return found
        # In P3, the info file of a split without examples has no entries.
        files = {
            os.path.basename(file).removeprefix("info.").removesuffix(".json"): file
            for file in tf.io.gfile.glob(os.path.join(folder, "info.*.json"))
        }
        cached = [name for name in files if json.loads(tf.io.gfile.GFile(files[name]).read())]
        return sorted(cached, key=lambda name: (name != "train", name != "validation", name))

    @property
    def cache_dir(self) -> str | None:
        """The directory of the task's cache, or None if there is no cache."""
        found: str | None = super().cache_dir
        if found is None:
            for folder in seqio.get_global_cache_dirs():
                path = os.path.join(folder, self.name.removeprefix(MT5_PREFIX))
                if tf.io.gfile.exists(os.path.join(path, "COMPLETED")):
                    return path
        return found


def seqio_task(
    name: str,
    source: TaskSource,
    vocabulary: seqio.Vocabulary,
    *,
    use_cached: bool,
    metric_fns: MetricFns,
) -> CachedSeqioTask:
    """Returns a SeqIO task for an mtf task.

    The metric functions receive stripped texts or, for ranked tasks, `seqio_registry.Choice`.
    """
    task, cached = source.task, seqio.CacheDatasetPlaceholder()
    if task.objective is not None:
        last = seqio.preprocessors.append_eos_after_trim
        steps = [cached, functools.partial(denoise, objective=task.objective), last]
    else:
        steps = [seqio.preprocessors.append_eos, cached]

    def postprocess(text: Any, example: Any = None, **_: Any) -> Any:
        if task.kind == "rank":  # the targets of rank classification
            scored = example["is_correct"], example["weight"], len(example["targets"])
            return tuple(example["idx"]), *scored
        return text.strip()

    made = CachedSeqioTask(
        name,
        source=source,
        output_features={
            "inputs": seqio.Feature(vocabulary, add_eos=task.inputs_add_eos),
            "targets": seqio.Feature(vocabulary, add_eos=task.targets_add_eos),
        },
        preprocessors=[seqio.preprocessors.tokenize, *steps],
        postprocess_fn=None if task.kind == "documents" else postprocess,
        metric_fns=metric_fns(task),
    )
    made.use_cached = use_cached
    return made


def denoise(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Mapping[str, seqio.Feature],
    objective: Objective,
) -> tf.data.Dataset:
    """Turns tokenized documents (feature `targets`) into inputs and targets, without EOS.

    As in T5, one chunk is taken from each long document. The chunks are concatenated and split into
    segments, and the noise is drawn from SeqIO's seeds.
    """
    lengths = objective.segment_lengths(sequence_length, output_features["inputs"].add_eos)
    num_tokens = lengths.num_tokens
    vocab_size = output_features["targets"].vocabulary.vocab_size
    size = objective.max_document_tokens

    def chunk(example: Mapping[str, tf.Tensor], seed: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
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

    def noise(tokens: tf.Tensor, seed: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        def with_numpy(ids: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            num_bits = objective.bits_per_token * len(ids)
            bits = random_bits(num_bits, int(seeds[0]), int(seeds[1]), Purpose.NOISE)
            inputs, targets = objective.apply(ids, lengths, vocab_size, bits)
            return inputs.astype(np.int32), targets.astype(np.int32)

        made = tf.numpy_function(with_numpy, (tokens, tf.stack(seed)), (tf.int32, tf.int32))
        for part in made:
            part.set_shape((None,))
        return dict(zip(("inputs", "targets"), made, strict=True))

    dataset = dataset.filter(lambda example: tf.size(example["targets"]) > 0)
    dataset = seqio.map_over_dataset(chunk, num_seeds=1)(dataset)
    dataset = dataset.ragged_batch(objective.merge_documents).map(join).flat_map(cut)
    return seqio.map_over_dataset(noise, num_seeds=1)(dataset)
