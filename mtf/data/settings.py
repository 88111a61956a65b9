"""What a run trains on, as plain values: files, streams or mixtures; lengths, objective.

`mtf.loaders` opens it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from mtf.errors import UserError, did_you_mean
from mtf.sources.lines import TEXT_SUFFIXES
from mtf.tasks.objectives import Objective, SegmentLengths, SpanCorruption
from mtf.text.normalization import Normalization
from mtf.text.vocabularies import ByteVocabulary, Vocabulary

# Paths may change between runs, because the loaders compare what is read with what was read before.
_MAY_CHANGE = {"on_resume": "may change"}
# Relative paths start in the directory in which the run was started first, also when it resumes.
_PATH = {"path": True}
_FEATURES = ("inputs", "targets")
# Every position attends to every other, so that no machine holds a longer row.
MAX_LENGTH = 2**20


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of all training data.

    Attributes:
      vocabulary: ByteVocabulary or SentencePieceVocabulary.
      task_feature_lengths: {"inputs": tokens, "targets": tokens} of a row, with end of sequence.
      pack: put several examples into a row if they fit.
      shuffle: use a new global order in every epoch; else the data's own.
      seed: of the order, and of every other random choice about the data.
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
                    f"data.task_feature_lengths: there is no feature {name!r}; "
                    f"expected 'inputs' and 'targets'.{did_you_mean(name, _FEATURES)}"
                )
        for name in _FEATURES:
            length = self.task_feature_lengths.get(name)
            if length is None:
                raise UserError(f"data.task_feature_lengths: the length of {name!r} is missing")
            if length < 1:
                raise UserError(f"data.task_feature_lengths[{name!r}]: {length} is less than 1")
            if length > MAX_LENGTH:
                raise UserError(
                    f"data.task_feature_lengths[{name!r}]: {length:,} is more than {MAX_LENGTH:,}, "
                    "at which one head's attention weights are 4 TiB already"
                )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"data.seed: {self.seed} is not between 0 and 2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class TextConfig(DataConfig):
    """Settings of documents, of which an objective makes inputs and targets.

    Attributes:
      objective: how documents become inputs and targets.
      inputs_add_eos: whether inputs end with end of sequence; targets always do.
      normalization: "romanian_diacritics" writes ş and ţ (cedilla) as ș and ț (comma below).
    """

    objective: Objective = field(default_factory=SpanCorruption)
    inputs_add_eos: bool = True
    normalization: Normalization = None

    def check_objective(self, vocab_size: int | None = None) -> SegmentLengths:
        """Returns the lengths of segments; raises UserError if documents cannot be used.

        Sentinels descend from `vocab_size - 1`. If the vocabulary has extra ids, all sentinels must
        lie in them, so that no ordinary id is taken. If it has none, they are its last ordinary
        ids, as in T5X (mT5's sentinels are pieces of its model, ByT5's are 258 downward): then
        there must be that many ids beside padding, end of sequence and unknown. For a SentencePiece
        model without extra ids, that is checked once the loader passes `vocab_size`.
        """
        lengths = self.objective.segment_lengths(self.task_feature_lengths, self.inputs_add_eos)
        extra_ids, num_sentinels = self.vocabulary.extra_ids, lengths.num_sentinels
        need = f"segments of {lengths.num_tokens} tokens need {num_sentinels} sentinels"
        if isinstance(self.vocabulary, ByteVocabulary):
            vocab_size = self.vocabulary.vocab_size
        if 0 < extra_ids < num_sentinels:
            raise UserError(f"data.vocabulary.extra_ids: {extra_ids} are too few; {need}")
        if not extra_ids and vocab_size is not None and vocab_size - 3 < num_sentinels:
            raise UserError(
                f"data.vocabulary: {vocab_size} ids are too few; {need} beside padding, end "
                "of sequence and unknown"
            )
        return lengths

    def example_settings(self) -> dict[str, object]:
        """Returns the settings that decide which examples a document becomes."""
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

    Documents go through the objective; pairs are trained on as they are. The file's suffix decides
    (each may be followed by `.gz`, which is unpacked into memory):

    * `.txt`: a line is a document, blank lines are skipped;
    * `.jsonl`: a line is `{"text": …}`, a document, or `{"inputs": …, "targets": …}`, a pair;
    * `.tsv`: a line is inputs, a tab, targets: a pair. No header, no quotation marks.

    All must be UTF-8 and of one kind; all lines are checked first. Files are indexed, not loaded,
    at 8 bytes of memory a line. Pairs longer than `task_feature_lengths` are truncated; for
    documents the targets must be long enough for what the objective makes of the inputs' length.

    Attributes:
      files: a path or pattern (`corpus/*.jsonl`), or several. None: the English text that every
        Python carries (its documentation topics and the docstrings of its standard library).
      num_held_out: documents or pairs kept from training, for evaluation; at most a tenth of all,
        but at least one of two or more.
      allow_empty_targets: train on pairs with empty targets, to write only the end of sequence;
        else files that have such pairs are refused.
    """

    files: str | tuple[str, ...] | None = field(default=None, metadata=_PATH)
    num_held_out: int = 128
    allow_empty_targets: bool = field(default=False, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_held_out < 0:
            raise UserError(f"data.num_held_out: {self.num_held_out} is negative")
        if self.files is not None and not self.patterns:
            raise UserError("data.files: no file is named; expected a path, several, or None")
        # The content of a .jsonl file is not known before the loader opens it and checks again.
        if all(pattern.endswith(TEXT_SUFFIXES) for pattern in self.patterns):
            self.check_objective()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`, none for the text that Python carries."""
        return (self.files,) if isinstance(self.files, str) else self.files or ()


@dataclass(frozen=True, kw_only=True)
class TextCorporaConfig(TextConfig):
    """Several corpora of text files, such as one a language, that are sampled from at rates.

    A rate is a corpus' part of the examples, as in SeqIO's mixtures. Each corpus repeats its own
    documents, in its own order.

    Attributes:
      files: name of a corpus → a path or pattern of its files, or several; as in `TextFilesConfig`.
      rates: name → how often it is sampled, relative to the others. None: |L| ** exponent, where
        |L| is the number of its documents that are trained on.
      sampling_exponent: see `rates`; mT5's is 0.3 (https://arxiv.org/abs/2010.11934, section 3.1).
        0 samples all corpora equally, 1 in proportion to their sizes.
      num_held_out: documents of each corpus kept from training, as in `TextFilesConfig`.
    """

    files: dict[str, str | tuple[str, ...]] = field(metadata=_PATH)
    rates: dict[str, float] | None = None
    sampling_exponent: float = 0.3
    num_held_out: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.files:
            raise UserError("data.files: there is no corpus; expected a name and its files")
        for name, patterns in self.files.items():
            _check_name("data.files", name)
            if not patterns:
                raise UserError(f"data.files[{name!r}]: no file is named")
        if self.rates is not None:
            _check_rates("data.rates", self.rates)
            for name in self.rates:
                if name not in self.files:
                    hint = did_you_mean(name, self.files)
                    raise UserError(f"data.rates: there is no corpus {name!r}.{hint}")
            missing = [name for name in self.files if name not in self.rates]
            if missing:
                raise UserError(f"data.rates: the rate of {', '.join(missing)} is missing")
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(
                f"data.sampling_exponent: {self.sampling_exponent} is not between 0 and 1"
            )
        for name in self.files:
            self.corpus(name, self.seed)

    def corpus(self, name: str, seed: int) -> TextFilesConfig:
        """Returns a corpus as data of its own."""
        shared = {field.name: getattr(self, field.name) for field in fields(TextConfig)}
        own = {"seed": seed, "files": self.files[name], "num_held_out": self.num_held_out}
        return TextFilesConfig(**shared | own)


@dataclass(frozen=True, kw_only=True)
class HubStreamConfig(TextConfig):
    """Documents that are read from the Hugging Face hub during training, not downloaded first.

    The dataset's files are divided into `num_streams` parts. Each is read by itself and gives
    batch_size / num_streams rows of every batch, so that batches do not depend on the number of
    processes. With fewer files than streams, each stream reads all of them and keeps every
    num_streams-th document.

    Attributes:
      dataset: a repository of the hub (`dumitrescustefan/rlm`), or a format (`parquet`, `json`,
        `text`) for `data_files`.
      subsets: configuration → its part of the examples, relative to the others. None: the dataset
        has only one.
      data_files: paths or patterns of local or remote files, for a format; or split → those.
      split: to train on.
      eval_split: to evaluate on, if the dataset has it; None: nothing.
      text_key: the column that holds the text.
      num_streams: parts that the dataset's files are divided into; a multiple of the number of
        processes and a divisor of the batch size.
      window_documents: documents that a stream holds of each subset, twice that while it reads
        ahead. They are shuffled among each other, and the files in every epoch. A resumed run
        reads up to this many again.
      eval_documents: the number of documents of `eval_split` to evaluate on, the first ones; of
        several subsets an equal part each.
    """

    dataset: str
    subsets: dict[str, float] | None = None
    data_files: str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None = None
    split: str = "train"
    eval_split: str | None = "validation"
    text_key: str = "text"
    num_streams: int = 8
    window_documents: int = 1024
    eval_documents: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset:
            raise UserError("data.dataset: it is empty; expected a repository of the hub")
        if self.subsets is not None:
            if not self.subsets:
                raise UserError("data.subsets: there is none; expected one or more, or None")
            _check_rates("data.subsets", self.subsets)
            for name in self.subsets:
                _check_name("data.subsets", name)
        if self.data_files is not None and not self.data_files:
            raise UserError("data.data_files: no file is named; expected one or more, or None")
        for name in ("num_streams", "window_documents", "eval_documents"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name}: {getattr(self, name)} is less than 1")
        self.check_objective()


@dataclass(frozen=True, kw_only=True)
class TaskMixtureConfig(DataConfig):
    """A mixture of tasks, or one task, by its name (T5X: `utils.DatasetConfig`).

    Attributes:
      mixture_or_task_name: `t0++_train`, `c4_v220_span_corruption`, …; `python -m mtf.data --list`
        shows all.
      loader: "cache" reads what `python -m mtf.cache` has written, without TensorFlow. "seqio"
        renders and tokenizes during training, through SeqIO.
      cache_dir: where the cache is; for "seqio", a directory of SeqIO's caches.
      split: to train on.
      eval_split: to evaluate on; None: nothing.
      use_cached: for "seqio": read SeqIO's caches in `cache_dir` instead of the source.
      data_dir: for "seqio": a local mirror of the datasets; None: MTF_DATA_DIR, else the hub.
      templates: for "seqio": where promptsource's templates are; None: MTF_PROMPTS, else those
        that `mtf prompts fetch` got.
    """

    mixture_or_task_name: str
    loader: Literal["cache", "seqio"] = "cache"
    cache_dir: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    split: str = "train"
    eval_split: str | None = "validation"
    use_cached: bool = False
    data_dir: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)
    templates: str | None = field(default=None, metadata=_MAY_CHANGE | _PATH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loader == "cache" and self.use_cached:
            raise UserError(
                "data.use_cached is about SeqIO's caches, for data.loader='seqio'; "
                "data.loader='cache' always reads data.cache_dir"
            )


AnyData: TypeAlias = TextFilesConfig | TextCorporaConfig | HubStreamConfig | TaskMixtureConfig


def _check_name(place: str, name: str) -> None:
    """Refuses names that could not be a part of a directory's name."""
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UserError(
            f"{place}: {name!r} cannot be a name; expected letters, digits and any of . _ + -"
        )


def _check_rates(place: str, rates: Mapping[str, float]) -> None:
    for name, rate in rates.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"{place}[{name!r}]: {rate} is not a positive number")
