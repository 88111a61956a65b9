"""Settings of the data that a run trains on; `mtf.loaders` opens it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from mtf.errors import UserError, did_you_mean
from mtf.sources.lines import TEXT_SUFFIXES
from mtf.tasks.objectives import Objective, SegmentLengths, SpanCorruption
from mtf.text.normalization import Normalization
from mtf.text.vocabularies import ByteVocabulary, Vocabulary

# Paths may change on resume, because the loaders compare the content.
_MAY_CHANGE = {"on_resume": "may change"}
# Paths are relative to the directory in which the run was first started, also on resume.
_PATH = {"path": True}
_FEATURES = ("inputs", "targets")
# Attention is quadratic in the length, so no machine has memory for a longer row.
MAX_LENGTH = 2**20


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of all training data.

    Attributes:
      vocabulary: ByteVocabulary or SentencePieceVocabulary.
      task_feature_lengths: {"inputs": tokens, "targets": tokens} of a row, including EOS.
      pack: whether to put several examples into a row if they fit.
      shuffle: whether to use a new random order in every epoch, instead of the data's order.
      seed: seed of the order and of all other random choices about the data.
    """

    vocabulary: Vocabulary
    task_feature_lengths: dict[str, int]
    pack: bool = True
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.task_feature_lengths:
            if name not in _FEATURES:
                raise UserError(
                    f"data.task_feature_lengths: unknown feature {name!r}; "
                    f"expected 'inputs' and 'targets'.{did_you_mean(name, _FEATURES)}"
                )
        for name in _FEATURES:
            length = self.task_feature_lengths.get(name)
            if length is None:
                raise UserError(f"data.task_feature_lengths: the length of {name!r} is missing")
            if length < 1:
                raise UserError(
                    f"data.task_feature_lengths[{name!r}] must be at least 1, not {length}"
                )
            if length > MAX_LENGTH:
                raise UserError(
                    f"data.task_feature_lengths[{name!r}] must be at most {MAX_LENGTH:,}, not "
                    f"{length:,}; at {MAX_LENGTH:,}, the attention weights of one head take 4 TiB"
                )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"data.seed must be in [0, 2**63), not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TextConfig(DataConfig):
    """Settings of documents that an objective turns into inputs and targets.

    Attributes:
      objective: objective that turns documents into inputs and targets.
      inputs_add_eos: whether inputs end with EOS; targets always do.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) with ș and ț (comma below).
    """

    objective: Objective = field(default_factory=SpanCorruption)
    inputs_add_eos: bool = True
    normalization: Normalization = None

    def check_objective(self, vocab_size: int | None = None) -> SegmentLengths:
        """Returns the lengths of segments; raises UserError if the settings exclude documents.

        Sentinels descend from `vocab_size - 1`. If the vocabulary has extra ids, all sentinels must
        be extra ids. If it has none, they are its last ids, as in T5X (mT5's sentinels are pieces
        of its model; ByT5's descend from 258), and there must be enough ids besides padding, EOS
        and unknown. For a SentencePiece model without extra ids, this needs `vocab_size`.
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

    def example_settings(self) -> dict[str, object]:
        """Returns the settings that determine the examples of a document."""
        return {
            "vocabulary": self.vocabulary.fingerprint(),
            "task_feature_lengths": self.task_feature_lengths,
            "objective": self.objective,
            "inputs_add_eos": self.inputs_add_eos,
            "normalization": self.normalization,
        }


@dataclass(frozen=True, kw_only=True)
class TextFilesConfig(TextConfig):
    """Text files as training data.

    Documents go through the objective; pairs are used as they are, truncated to
    `task_feature_lengths`. The suffix of a file, before an optional `.gz`, determines its format:

    * `.txt`: each line is a document; blank lines are skipped.
    * `.jsonl`: each line is `{"text": …}`, a document, or `{"inputs": …, "targets": …}`, a pair.
    * `.tsv`: each line is a pair: inputs, a tab, targets. There are no header and no quotes.

    Files must be UTF-8 and of one kind. All lines are checked first. Files are indexed (8 bytes of
    memory per line), not loaded, except that `.gz` files are decompressed into memory.

    Attributes:
      files: a path, a pattern (`corpus/*.jsonl`) or several; None: the English text that ships with
        Python (its documentation topics and the docstrings of its standard library).
      num_held_out: number of documents or pairs that are only evaluated; at most a tenth of all,
        but at least one if there are two or more.
      allow_empty_targets: whether to train on pairs with empty targets (the model then learns only
        EOS from them) instead of refusing them.
    """

    files: str | tuple[str, ...] | None = field(default=None, metadata=_PATH)
    num_held_out: int = 128
    allow_empty_targets: bool = field(default=False, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_held_out < 0:
            raise UserError(f"data.num_held_out must be at least 0, not {self.num_held_out}")
        if self.files is not None and not self.patterns:
            raise UserError(
                "data.files is empty; expected at least one file, or None (the docstrings of "
                "Python's standard library)"
            )
        # The kind of a .jsonl file is unknown until the loader opens it, which then checks this.
        if all(pattern.endswith(TEXT_SUFFIXES) for pattern in self.patterns):
            self.check_objective()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`."""
        return (self.files,) if isinstance(self.files, str) else self.files or ()


@dataclass(frozen=True, kw_only=True)
class TextCorporaConfig(TextConfig):
    """Several corpora of text files, for example one per language, mixed at rates.

    A rate is a proportion of examples, as in SeqIO's mixtures. Each corpus has its own order and
    starts over at its end.

    Attributes:
      files: name of a corpus → its files, as in `TextFilesConfig`.
      rates: name of a corpus → its relative rate; None: |L| ** sampling_exponent, where |L| is the
        number of its training documents.
      sampling_exponent: exponent in `rates`; mT5's is 0.3 (https://arxiv.org/abs/2010.11934,
        section 3.1). 0 samples all corpora equally, 1 in proportion to their sizes.
      num_held_out: number of documents of each corpus that are only evaluated, with the limits of
        `TextFilesConfig`.
    """

    files: dict[str, str | tuple[str, ...]] = field(metadata=_PATH)
    rates: dict[str, float] | None = None
    sampling_exponent: float = 0.3
    num_held_out: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.files:
            raise UserError("data.files is empty; expected the files of at least one corpus")
        for name, patterns in self.files.items():
            _check_name("data.files", name)
            if not patterns:
                raise UserError(f"data.files[{name!r}] is empty; expected at least one file")
        if self.rates is not None:
            _check_rates("data.rates", self.rates)
            for name in self.rates:
                if name not in self.files:
                    hint = did_you_mean(name, self.files)
                    raise UserError(
                        f"data.rates: {name!r} is not a corpus in data.files; expected "
                        f"{', '.join(self.files)}.{hint}"
                    )
            missing = [name for name in self.files if name not in self.rates]
            if missing:
                raise UserError(f"data.rates: the rate of {', '.join(missing)} is missing")
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(
                f"data.sampling_exponent must be in [0, 1], not {self.sampling_exponent}"
            )
        for name in self.files:
            self.corpus(name, self.seed)

    def corpus(self, name: str, seed: int) -> TextFilesConfig:
        """Returns the settings of one corpus."""
        shared = {field.name: getattr(self, field.name) for field in fields(TextConfig)}
        own = {"seed": seed, "files": self.files[name], "num_held_out": self.num_held_out}
        return TextFilesConfig(**shared | own)


@dataclass(frozen=True, kw_only=True)
class HubStreamConfig(TextConfig):
    """Documents that are streamed from the Hugging Face hub during training.

    The dataset's files are divided among `num_streams` streams. Each stream makes
    batch_size / num_streams rows of every batch, so batches do not depend on the number of
    processes. If there are fewer files than streams, each stream reads all files and keeps every
    num_streams-th document.

    Attributes:
      dataset: a repository of the hub (`dumitrescustefan/rlm`), or the format of `data_files`
        (`parquet`, `json`, `text`).
      subsets: configuration of the dataset → its relative rate; None if it has only one.
      data_files: paths or patterns of local or remote files, or a dict from splits to these.
      split: split to train on.
      eval_split: split to evaluate, if the dataset has it; None: none.
      text_key: name of the text's column.
      num_streams: number of streams, a divisor of the batch size. With more processes than streams,
        several processes read the same stream; a multiple of the number of processes avoids this.
      window_documents: number of documents of each subset that a stream shuffles at a time; it
        reads as many ahead. A resumed run reads up to this many again.
      eval_documents: maximum number of documents of `eval_split` to evaluate, in equal parts per
        subset; None: as many as `trainer.eval_steps` batches hold. They stay in memory.
    """

    dataset: str
    subsets: dict[str, float] | None = None
    data_files: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None = None
    split: str = "train"
    eval_split: str | None = "validation"
    text_key: str = "text"
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
        for name in ("num_streams", "window_documents", "eval_documents"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"data.{name} must be at least 1, not {getattr(self, name)}")
        self.check_objective()


@dataclass(frozen=True, kw_only=True)
class DatasetTaskConfig:
    """A dataset whose records become examples by columns or templates.

    Attributes:
      inputs, targets: name of a column, or a Jinja template over columns
        (`{{question}} {{context}}`).
      dataset: name of a dataset on the Hugging Face hub, or in the local mirror.
      subset: configuration of the dataset; None if it has none.
      files: split → path or pattern of local files, instead of a dataset; their suffixes are those
        of `mtf.sources.files`.
      tsv_header: whether the first line of a TSV file names its columns; if not, they are `inputs`
        and `targets`, and a first line with exactly these names is skipped.
      metrics: names from `mtf.evaluation.metrics`.
      answer_choices: all possible targets, the classes of metrics such as `f1`.
      inputs_add_eos: whether inputs end with EOS; targets always do.
    """

    inputs: str
    targets: str
    dataset: str | None = None
    subset: str | None = None
    files: dict[str, str] | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    tsv_header: bool = True
    metrics: tuple[str, ...] = ()
    answer_choices: tuple[str, ...] | None = None
    inputs_add_eos: bool = True

    def __post_init__(self) -> None:
        if (self.dataset is None) == (self.files is None):
            raise UserError(
                "data.task: dataset and files are both "
                f"{'None' if self.files is None else 'set'}; set exactly one of them"
            )
        for name in ("inputs", "targets"):
            if not getattr(self, name):
                raise UserError(f"data.task.{name} is empty; expected a column or a template")


@dataclass(frozen=True, kw_only=True)
class TaskMixtureConfig(DataConfig):
    """A mixture of tasks, or one task (T5X: `utils.DatasetConfig`).

    Attributes:
      mixture_or_task_name: `t0++_train`, `c4_v220_span_corruption`, …; `python -m mtf.data --list`
        lists all mixtures. With `task`, any name.
      loader: "cache" reads a token cache. "memory" renders and tokenizes into memory when the run
        starts, for small datasets; it yields the same batches. "seqio" renders and tokenizes
        during training, with SeqIO and TensorFlow.
      cache_dir: directory of the token cache or, with "seqio", of SeqIO's caches; of several
        directories, each task is taken from the first that has it.
      split: split to train on.
      eval_split: split to evaluate; None: none.
      use_cached: with "seqio", whether to read SeqIO's caches in `cache_dir`.
      data_dir: unless "cache", a local mirror of the datasets; None: MTF_DATA_DIR, else the hub.
      templates: unless "cache", an archive or directory of templates; None: see `load_templates`.
      module: module that registers tasks and mixtures of your own (`my.tasks`), which is imported
        before the mixture is looked up.
      task: a dataset as the only task, instead of a task that is known by its name.
      allow_missing_tasks: whether to use the other tasks of a mixture if some are missing from the
        cache or have no dataset, instead of refusing it.
    """

    mixture_or_task_name: str
    loader: Literal["cache", "memory", "seqio"] = "cache"
    cache_dir: str | tuple[str, ...] | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    split: str = "train"
    eval_split: str | None = "validation"
    use_cached: bool = False
    data_dir: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    templates: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    module: str | None = field(default=None, metadata=_MAY_CHANGE)
    task: DatasetTaskConfig | None = None
    allow_missing_tasks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def cache_dirs(self) -> tuple[str, ...]:
        """The directories in `cache_dir`."""
        return (self.cache_dir,) if isinstance(self.cache_dir, str) else self.cache_dir or ()


@dataclass(frozen=True, kw_only=True)
class OwnDataConfig(DataConfig):
    """Examples or batches from an iterator of your own; docs/extending.md describes it.

    `shuffle` and `seed` have no effect: the order is the iterator's.

    Attributes:
      train: function of `shard_index` and `shard_count` that returns an endless iterable, whose
        iterator has `get_state` and `set_state`; in each of several processes, a part of the data.
      evaluation: function that returns a finite iterable of the examples to evaluate, the same at
        every call and in every process; None: none.
      inputs_add_eos: whether EOS is appended to inputs that are texts.
    """

    train: Callable[..., Any]
    evaluation: Callable[..., Any] | None = None
    inputs_add_eos: bool = True


AnyData: TypeAlias = (
    TextFilesConfig | TextCorporaConfig | HubStreamConfig | TaskMixtureConfig | OwnDataConfig
)


def _check_name(place: str, name: str) -> None:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UserError(
            f"{place}: {name!r} is not a valid name; use only letters, digits, and . _ + -"
        )


def _check_rates(place: str, rates: Mapping[str, float]) -> None:
    for name, rate in rates.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"{place}[{name!r}] must be a positive number, not {rate}")
