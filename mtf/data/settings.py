"""Defines the settings for the data that a run trains on; `mtf.data.loaders` opens the data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from mtf.base.checks import AT_LEAST_ONE, AT_LEAST_ZERO, FRACTION, check_fields
from mtf.base.errors import UserError, did_you_mean
from mtf.data.sources.lines import TEXT_SUFFIXES
from mtf.data.sources.records import FileSource, RecordSource
from mtf.data.tasks.objectives import Objective, SegmentLengths, SpanCorruption
from mtf.data.text.normalization import Normalization
from mtf.data.text.vocabularies import RELEASED_MODELS, ByteVocabulary, Vocabulary
from mtf.storage.copies import cache_directory

# May change when a run resumes. For paths, the loaders compare the content instead.
_MAY_CHANGE = {"on_resume": "may change"}
# Paths are relative to the directory in which the run was first started, even on resume.
_PATH = {"path": True}
_FEATURES = ("inputs", "targets")
# The memory of attention is quadratic in the length, so no machine can process a longer row.
_MAX_LENGTH = 2**20


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings that are common to all kinds of data.

    Attributes:
      loaded_by: name of the module that loads this kind of data (see `mtf.data.loaders`).
      vocabulary: ByteVocabulary, SentencePieceVocabulary or TokenizerVocabulary.
      task_feature_lengths: number of tokens per row, including EOS: {"inputs": …, "targets": …}.
      pack: whether to put several examples into a row if they fit.
      shuffle: whether to read the data in a new random order in every epoch; if False, the order
        in which the data is stored is kept.
      seed: seed for shuffling and for all other random choices about the data.
    """

    loaded_by: ClassVar[str]

    vocabulary: Vocabulary
    task_feature_lengths: dict[str, int]
    pack: bool = True
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _check_keys("data.task_feature_lengths", self.task_feature_lengths, _FEATURES)
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise UserError(
                    f"data.task_feature_lengths[{name!r}] must be at least 1, not {length}"
                )
            if length > _MAX_LENGTH:
                raise UserError(
                    f"data.task_feature_lengths[{name!r}] must be at most {_MAX_LENGTH:,}, not "
                    f"{length:,}; at {_MAX_LENGTH:,}, the attention weights of one head take 4 TiB"
                )
        check_fields(self, ("in [0, 2**63)", lambda n: 0 <= n < 2**63), "seed")


@dataclass(frozen=True, kw_only=True)
class TextConfig(DataConfig):
    """Settings for text data, which consists of pairs or of documents.

    Attributes:
      objective: objective that turns documents into inputs and targets.
      inputs_add_eos: whether inputs end with EOS; targets always do.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) with ș and ț (comma below).
      num_workers: number of processes that make the batches of each process of the run; 0 to make
        them in a thread. Batches do not depend on it.
    """

    objective: Objective = field(default_factory=SpanCorruption)
    inputs_add_eos: bool = True
    normalization: Normalization = None
    num_workers: int = field(default=0, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, AT_LEAST_ZERO, "num_workers")

    def check_objective(self, vocab_size: int | None = None) -> SegmentLengths:
        """Returns the lengths of segments; raises UserError if the objective cannot be used.

        The ids of the sentinels count down from `vocab_size - 1`. If the vocabulary has extra ids,
        all sentinels must be extra ids. Otherwise, the sentinels are the last ids of the
        vocabulary, as in T5X: mT5's sentinels are pieces of its model, and ByT5's count down from
        258. In this case, the vocabulary must have enough ids besides padding, EOS and unknown; for
        a SentencePiece model, this is checked only if `vocab_size` is given.
        """
        lengths = self.objective.segment_lengths(self.task_feature_lengths, self.inputs_add_eos)
        extra_ids, num_sentinels = self.vocabulary.extra_ids, lengths.num_sentinels
        need = f"segments of {lengths.num_tokens} tokens need {num_sentinels} sentinels"
        if isinstance(self.vocabulary, ByteVocabulary):
            vocab_size = self.vocabulary.vocab_size
        if 0 < extra_ids < num_sentinels:
            raise UserError(f"data.vocabulary.extra_ids: {extra_ids} sentinels are too few; {need}")
        if not extra_ids and vocab_size is not None and vocab_size - 3 < num_sentinels:
            raise UserError(
                f"data.vocabulary: {vocab_size} ids are too few; {need} in addition to padding, "
                "EOS and unknown"
            )
        return lengths


@dataclass(frozen=True, kw_only=True)
class TextFilesConfig(TextConfig):
    """Settings for training on text files.

    The objective turns documents into examples. Pairs are used as they are, but are truncated to
    `task_feature_lengths`. The suffix of a file, before an optional `.gz`, determines its format:

    * `.txt`: each line is a document; blank lines are skipped.
    * `.jsonl`: each line is a document `{"text": …}` or a pair `{"inputs": …, "targets": …}`.
    * `.tsv`: each line is a pair of inputs and targets, separated by a tab. Quotes have no
      special meaning, and there is no header.
    * `.csv`: each record is a document or a pair; the header names the column `text`, or the
      columns `inputs` and `targets`. Fields may be quoted, as in RFC 4180.

    Files must be encoded in UTF-8, and must contain either only documents or only pairs. All lines
    are checked before training. Only `.gz` and `.csv` files are loaded into memory. The index
    of a file takes 8 bytes of memory per line.

    Attributes:
      files: a path, a pattern (`corpus/*.jsonl`), or a tuple of these; None for the English text
        that ships with Python (documentation topics and the docstrings of the standard library).
      num_held_out: number of documents or pairs to hold out for evaluation. At most a tenth is held
        out, but at least one document or pair if there are two or more.
      allow_empty_targets: whether to accept pairs with empty targets, which teach the model only
        EOS. If False, such pairs are an error.
    """

    loaded_by = "mtf.data.text_loader"

    files: str | tuple[str, ...] | None = field(default=None, metadata=_PATH)
    num_held_out: int = 128
    allow_empty_targets: bool = field(default=False, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, AT_LEAST_ZERO, "num_held_out")
        if self.files is not None and not self.patterns:
            raise UserError(
                "data.files is empty; expected at least one file, or None for the docstrings "
                "of Python's standard library"
            )
        # The loader checks the objective for .jsonl files, which may contain documents or pairs.
        if all(pattern.endswith(TEXT_SUFFIXES) for pattern in self.patterns):
            self.check_objective()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`."""
        return (self.files,) if isinstance(self.files, str) else self.files or ()


@dataclass(frozen=True, kw_only=True)
class TextCorporaConfig(TextConfig):
    """Settings for training on several corpora of text files, for example one per language.

    The corpora are mixed at given rates. A rate is a proportion of examples, as in SeqIO's
    mixtures. Each corpus is shuffled separately, and is repeated when it ends.

    Attributes:
      files: dict that maps the name of each corpus to its files (see `TextFilesConfig`).
      rates: dict that maps the name of each corpus to its relative rate; None to use
        |L| ** sampling_exponent, where |L| is the number of training documents in the corpus.
      sampling_exponent: exponent for the default rates; mT5 uses 0.3
        (https://arxiv.org/abs/2010.11934, section 3.1). With 0, all corpora have the same rate;
        with 1, rates are proportional to sizes.
      num_held_out: number of documents to hold out from each corpus for evaluation, with the same
        limits as in `TextFilesConfig`.
    """

    loaded_by = "mtf.data.text_loader"

    files: dict[str, str | tuple[str, ...]] = field(metadata=_PATH)
    rates: dict[str, float] | None = None
    sampling_exponent: float = 0.3
    num_held_out: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.files:
            raise UserError("data.files is empty; expected the files of at least one corpus")
        for name in self.files:
            _check_name("data.files", name)
        if self.rates is not None:
            _check_rates("data.rates", self.rates)
            _check_keys("data.rates", self.rates, self.files)
        check_fields(self, ("in [0, 1]", lambda x: 0 <= x <= 1), "sampling_exponent")
        for name in self.files:
            self.corpus(name, self.seed)

    def corpus(self, name: str, seed: int) -> TextFilesConfig:
        """Returns the settings of one corpus."""
        values = {field.name: getattr(self, field.name) for field in fields(TextConfig)}
        values |= {"seed": seed, "files": self.files[name], "num_held_out": self.num_held_out}
        return TextFilesConfig(**values)


@dataclass(frozen=True, kw_only=True)
class HubStreamConfig(TextConfig):
    """Settings for streaming documents or pairs from the Hugging Face hub during training.

    The dataset's files are divided among `num_streams` streams. Each stream provides
    batch_size / num_streams rows of every batch, so batches do not depend on the number of
    processes. If there are fewer files than streams, each stream reads all files and keeps every
    num_streams-th document.

    Attributes:
      dataset: name of a dataset repository on the hub (`dumitrescustefan/rlm`) or, if `data_files`
        is set, the format of these files (`parquet`, `json` or `text`).
      subsets: dict that maps the names of the selected configurations to their relative rates;
        None if the dataset has only one configuration.
      data_files: path or pattern of local or remote files, a tuple of these, or a dict that maps
        each split to its files.
      split: split to train on.
      eval_split: split to evaluate on, if the dataset has it; None for no evaluation.
      text_key: name of the column that contains the text.
      inputs: name of a column or a template, as in `DatasetTaskConfig`, for a dataset of pairs;
        None for a dataset of documents. If it is set, `text_key` and `objective` are not used.
      targets: name of a column or a template, like `inputs`.
      num_streams: number of streams, a divisor of the batch size. If there are more processes than
        streams, several processes read the same stream; to avoid this, use a multiple of the number
        of processes.
      window_documents: number of documents of each subset that a stream shuffles together. A stream
        also reads this many documents ahead, and a resumed run reads up to this many again.
      eval_documents: maximum number of documents of `eval_split` to evaluate on, divided equally
        among subsets; None for as many as fit into `trainer.eval_steps` batches. The documents are
        kept in memory.
    """

    loaded_by = "mtf.data.stream_loader"

    dataset: str
    subsets: dict[str, float] | None = None
    data_files: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None = None
    split: str = "train"
    eval_split: str | None = "validation"
    text_key: str = "text"
    inputs: str | None = None
    targets: str | None = None
    num_streams: int = 8
    window_documents: int = 1024
    eval_documents: int | None = field(default=None, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset:
            raise UserError(
                "data.dataset is empty; expected the name of a dataset on the Hugging Face hub"
            )
        if self.subsets is not None:
            if not self.subsets:
                raise UserError("data.subsets is empty; expected at least one subset, or None")
            _check_rates("data.subsets", self.subsets)
            for name in self.subsets:
                _check_name("data.subsets", name)
        if self.data_files is not None and not self.data_files:
            raise UserError("data.data_files is empty; expected at least one file, or None")
        check_fields(self, AT_LEAST_ONE, "num_streams", "window_documents")
        check_fields(self, AT_LEAST_ONE, "eval_documents", optional=True)
        if (self.inputs is None) != (self.targets is None):
            raise UserError("data.inputs and data.targets must both be set, or both be None")
        if self.inputs is None:
            self.check_objective()


@dataclass(frozen=True, kw_only=True)
class DatasetTaskConfig:
    """A task that makes examples from a dataset's columns, directly or with templates.

    Attributes:
      inputs, targets: name of a column, a text with columns such as `{question} {context}`, or a
        Jinja template over columns.
      dataset: name of a dataset on the Hugging Face hub, or in the local mirror.
      subset: configuration of the dataset; None if it has none.
      files: dict that maps each split to the path or pattern of the local files to use instead of a
        dataset; `mtf.data.sources.files` lists the supported formats.
      tsv_header: whether the first line of a TSV file names its columns; if not, the columns are
        `inputs` and `targets`, and a first line that consists of these two names is skipped.
      source: custom source of records to use instead of a dataset; see docs/extending.md.
      held_out: fraction of the records of the split `train` to hold out, chosen at random, as the
        split `validation`. The choice depends only on the number of records.
      metrics: names of metrics in `mtf.data.tasks.metrics`.
      answer_choices: all possible targets, which are the classes for metrics such as `f1`.
      inputs_add_eos: whether inputs end with EOS; targets always do.
    """

    inputs: str
    targets: str
    dataset: str | None = None
    subset: str | None = None
    files: dict[str, str] | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    tsv_header: bool = True
    source: RecordSource | None = None
    held_out: float | None = None
    metrics: tuple[str, ...] = field(default=(), metadata={"imports": "functions"})
    answer_choices: tuple[str, ...] | None = None
    inputs_add_eos: bool = True

    def __post_init__(self) -> None:
        given = [name for name in ("dataset", "files", "source") if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are set" if given else "all of them are None"
            raise UserError(
                f"data.task: expected exactly one of dataset, files and source, but {found}"
            )
        check_fields(self, FRACTION, "held_out", optional=True)
        for name in ("inputs", "targets"):
            if not getattr(self, name):
                raise UserError(f"data.task.{name} is empty; expected a column or a template")

    @property
    def records(self) -> RecordSource | None:
        """The source of the records; None for a dataset."""
        return self.source if self.files is None else FileSource(self.files, self.tsv_header)


@dataclass(frozen=True, kw_only=True)
class TaskMixtureConfig(DataConfig):
    """Settings for a mixture of tasks or a single task, like `utils.DatasetConfig` in T5X.

    Attributes:
      mixture_or_task_name: name of the mixture or task, such as `t0++_train` or
        `c4_v220_span_corruption`; `python -m mtf data --list` prints all mixtures. If `task` is
        set, any name is valid.
      loader: "cache" reads a token cache. "memory" renders and tokenizes a small dataset into
        memory when the run starts, and yields the same batches as "cache". "seqio" renders and
        tokenizes during training, with SeqIO and TensorFlow.
      cache_dir: directory of the token cache or, for the loader "seqio", one or more directories of
        SeqIO's caches. Each task is read from the first directory that contains it. For the loader
        "cache", None stands for the directory to which `mtf.cache` writes by default; evaluations
        read the datasets instead.
      split: split to train on.
      eval_split: split to evaluate on; None for no evaluation.
      use_cached: whether the loader "seqio" reads SeqIO's caches in `cache_dir`.
      data_dir: local mirror of the datasets; None for the directory in the environment variable
        MTF_DATA_DIR or, if it is not set, the hub. The loader "cache" does not use the datasets.
      templates: archive or directory of templates; None for the default of `load_templates`. The
        loader "cache" does not use them.
      module: name of a module, such as `my.tasks`, that registers custom tasks and mixtures. It is
        imported before the mixture is looked up.
      task: settings of a dataset to use as the only task, instead of a registered mixture or task.
      allow_missing_tasks: whether to use the remaining tasks of a mixture if some are missing from
        the cache or have no dataset; if False, missing tasks are an error.
      num_workers: see `TextConfig`; only for the loader "cache".
    """

    mixture_or_task_name: str
    loader: Literal["cache", "memory", "seqio"] = "cache"
    cache_dir: str | tuple[str, ...] | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    split: str = "train"
    eval_split: str | None = "validation"
    use_cached: bool = False
    data_dir: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    templates: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    module: str | None = field(default=None, metadata=_MAY_CHANGE | {"imports": "modules"})
    task: DatasetTaskConfig | None = None
    allow_missing_tasks: bool = False
    num_workers: int = field(default=0, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, AT_LEAST_ZERO, "num_workers")
        if self.num_workers and self.loader != "cache":
            raise UserError(
                f"data.num_workers={self.num_workers} needs data.loader='cache', not "
                f"{self.loader!r}; set data.num_workers=0"
            )
        if self.cache_dir is not None and not all(self.cache_dirs or ("",)):
            raise UserError("data.cache_dir is empty; expected at least one directory, or None")
        if self.loader != "seqio" and self.use_cached:
            raise UserError(
                "data.use_cached=True selects SeqIO's caches, so it needs data.loader='seqio', not "
                f"{self.loader!r}. Set data.loader='seqio' or data.use_cached=False"
            )
        if self.loader == "memory" and self.cache_dir is not None:
            raise UserError(
                f"data.loader='memory' does not read a cache, but data.cache_dir is "
                f"{self.cache_dir!r}; set data.loader='cache', or data.cache_dir=None"
            )
        if self.task is not None:
            _check_name("data.mixture_or_task_name", self.mixture_or_task_name)

    @property
    def loaded_by(self) -> str:  # type: ignore[override]
        """See `DataConfig`."""
        return "mtf.data.seqio.loader" if self.loader == "seqio" else "mtf.data.cache.loader"

    @property
    def cache_dirs(self) -> tuple[str, ...]:
        """The directories of the token cache or of SeqIO's caches."""
        if self.cache_dir is None and self.loader == "cache":
            return (default_cache_dir(self.mixture_or_task_name, self.vocabulary),)
        return (self.cache_dir,) if isinstance(self.cache_dir, str) else self.cache_dir or ()


def default_cache_dir(mixture: str, vocabulary: Vocabulary, *others: str) -> str:
    """Returns the directory to which `mtf.cache` writes a mixture unless `--output` is given.

    Args:
      mixture: name of the mixture or task.
      vocabulary: vocabulary of the cache.
      *others: settings that recipes do not expect in a cache, such as "seed1".
    """
    names = {path: name for name, path in RELEASED_MODELS.items()}
    # The name of a released vocabulary is known before its file has been downloaded.
    name = names.get(vocabulary.path) or vocabulary.fingerprint().replace(":", "-")
    return str(cache_directory() / "tokens" / mixture / "-".join((name, *others)))


@dataclass(frozen=True, kw_only=True)
class CustomDataConfig(DataConfig):
    """Settings for training on examples from a custom iterator; see docs/extending.md.

    `shuffle` and `seed` have no effect, because the iterator determines the order.

    Attributes:
      train: function that takes `shard_index` and `shard_count`, and returns an endless iterable
        over this shard of the data. The iterable's iterator must have `get_state` and `set_state`.
      evaluation: function that returns a finite iterable of the examples to evaluate on; None for
        no evaluation. The examples must be the same on every call and in every process.
      inputs_add_eos: whether EOS is appended to inputs that are texts.
    """

    loaded_by = "mtf.data.custom_loader"

    train: Callable[..., Any]
    evaluation: Callable[..., Any] | None = None
    inputs_add_eos: bool = True


AnyData: TypeAlias = (
    TextFilesConfig | TextCorporaConfig | HubStreamConfig | TaskMixtureConfig | CustomDataConfig
)


def _check_name(setting: str, name: str) -> None:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UserError(
            f"{setting}: {name!r} is not a valid name; use only letters, digits, and . _ + -"
        )


def _check_keys(setting: str, values: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises UserError unless the keys of `values` are `names`, in any order."""
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UserError(f"{setting}: unknown {name!r}; expected {', '.join(names)}.{hint}")
    missing = [name for name in names if name not in values]
    if missing:
        raise UserError(f"{setting}: {', '.join(missing)} is missing")


def _check_rates(setting: str, rates: Mapping[str, float]) -> None:
    for name, rate in rates.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"{setting}[{name!r}] must be a positive number, not {rate}")
