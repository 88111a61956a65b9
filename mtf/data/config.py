"""What a run trains on, as plain values: files, vocabulary, lengths, span corruption.

Nothing is opened here; `mtf.data.loader` does that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mtf.data.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.errors import UserError, did_you_mean

TEXT_SUFFIXES = (".txt", ".txt.gz")
PAIR_SUFFIXES = (".tsv", ".tsv.gz")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *PAIR_SUFFIXES)


def num_noise_tokens_and_spans(
    length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
    """Returns how many of `length` tokens are noise, and in how many spans they lie.

    Both are rounded half to even. There is at least one of each, at least one token stays, and
    spans do not outnumber the tokens that stay. A length below 2 counts as 2.
    """
    length = max(length, 2)
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = max(round(num_noise / mean_noise_span_length), 1)
    return num_noise, min(num_spans, length - num_noise)


def span_corruption_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Returns (tokens_length, targets_length) for span corruption to `inputs_length`.

    `tokens_length` tokens become exactly `targets_length` targets and at most `inputs_length`
    inputs, each with its end of sequence; more tokens would not fit the inputs.

    Raises:
      UserError: the length is too small to hold a noise span of the wanted kind.
    """
    noise_density, mean_noise_span_length = float(noise_density), float(mean_noise_span_length)

    def lengths(num_tokens: int) -> tuple[int, int, int, int]:
        num_noise = round(num_tokens * noise_density)
        num_spans = round(num_noise / mean_noise_span_length)
        inputs, targets = num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1
        return num_noise, num_spans, inputs, targets

    num_tokens = 1
    while lengths(num_tokens + 1)[2] <= inputs_length:
        num_tokens += 1
    num_noise, num_spans, inputs, targets = lengths(num_tokens)
    kept = num_noise_tokens_and_spans(num_tokens, noise_density, mean_noise_span_length)
    if inputs > inputs_length or (num_noise, num_spans) != kept:
        raise UserError(
            f"inputs length {inputs_length} is too small for span corruption with "
            f"noise_density={noise_density:g} and mean_noise_span_length="
            f"{mean_noise_span_length:g}: {num_tokens} tokens would have {num_noise} noise tokens "
            f"in {num_spans} spans; expected a larger inputs length or shorter spans"
        )
    if noise_density == 0.5 and targets > inputs_length:
        # T5 keeps the targets no longer than the inputs.
        num_tokens, targets = num_tokens - 1, targets - 1
    return num_tokens, targets


@dataclass(frozen=True)
class SpanCorruption:
    """T5's denoising objective (https://arxiv.org/abs/1910.10683, section 3.1.4).

    Attributes:
      noise_density: the part of the tokens that is noise.
      mean_noise_span_length: tokens in a noise span, on average.
      merge_documents: documents that are concatenated before they are cut into segments.
      max_document_tokens: of a longer document, one random aligned chunk of this size is used.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    merge_documents: int = 128
    max_document_tokens: int = 65536

    def __post_init__(self) -> None:
        if not 0 < self.noise_density < 1:
            raise UserError(
                f"span_corruption.noise_density: {self.noise_density} is not between 0 and 1"
            )
        if self.mean_noise_span_length < 1:
            raise UserError(
                f"span_corruption.mean_noise_span_length: {self.mean_noise_span_length} "
                "is less than one token"
            )
        for name in ("merge_documents", "max_document_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"span_corruption.{name}: {getattr(self, name)} is less than 1")


@dataclass(frozen=True)
class TextFiles:
    """Text files as training data.

    Documents go through span corruption; pairs are trained on as they are. By the file's suffix
    (each also with `.gz`, which is unpacked into memory):

    * `.txt`: a line is a document, blank lines are skipped;
    * `.jsonl`: a line is `{"text": …}`, a document, or `{"inputs": …, "targets": …}`, a pair;
    * `.tsv`: a line is inputs, a tab, targets: a pair. No header, no quotation marks.

    All must be UTF-8 and of one kind. A file is indexed, not loaded: 8 bytes of memory a line.

    Attributes:
      vocabulary: ByteVocabulary or SentencePieceVocabulary.
      task_feature_lengths: {"inputs": tokens, "targets": tokens}, with end of sequence. Pairs that
        are longer are truncated; for span corruption the targets must be long enough for the
        inputs (`span_corruption_lengths`).
      files: a path or pattern (`corpus/*.jsonl`), or several. None: the English text that every
        Python carries (its documentation topics and the docstrings of its standard library).
      span_corruption: how documents become inputs and targets.
      inputs_add_eos: whether inputs end with end of sequence; targets always do.
      pack: put several examples into a row, where they fit.
      shuffle: a new global order of all documents or pairs in every epoch; else the files' order.
      seed: of the order, the noise and the choice of what is held out.
      num_held_out: documents or pairs that are kept from training, for evaluation. At most a
        tenth of all is (but one, where there are two or more).
    """

    vocabulary: ByteVocabulary | SentencePieceVocabulary
    task_feature_lengths: dict[str, int]
    files: str | tuple[str, ...] | None = None
    span_corruption: SpanCorruption = field(default_factory=SpanCorruption)
    inputs_add_eos: bool = True
    pack: bool = True
    shuffle: bool = True
    seed: int = 0
    num_held_out: int = 128

    def __post_init__(self) -> None:
        for name in self.task_feature_lengths:
            if name not in ("inputs", "targets"):
                hint = did_you_mean(name, ("inputs", "targets"))
                raise UserError(
                    f"data.task_feature_lengths: there is no feature {name!r}; "
                    f"expected 'inputs' and 'targets'.{hint}"
                )
        for name in ("inputs", "targets"):
            length = self.task_feature_lengths.get(name)
            if length is None:
                raise UserError(f"data.task_feature_lengths: the length of {name!r} is missing")
            if length < 1:
                raise UserError(f"data.task_feature_lengths[{name!r}]: {length} is less than 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"data.seed: {self.seed} is not between 0 and 2**63 - 1")
        if self.num_held_out < 0:
            raise UserError(f"data.num_held_out: {self.num_held_out} is negative")
        if self.files is not None and not self.patterns:
            raise UserError("data.files: no file is named; expected a path, several, or None")
        # What a .jsonl file holds is known when it is opened; the loader checks again then.
        if all(pattern.endswith(TEXT_SUFFIXES) for pattern in self.patterns):
            self.check_span_corruption()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`, none for the text that Python carries."""
        return (self.files,) if isinstance(self.files, str) else self.files or ()

    def check_span_corruption(self, vocab_size: int | None = None) -> tuple[int, int]:
        """Returns (tokens_length, targets_length); raises UserError if documents cannot be used.

        A segment needs one sentinel a noise span, and they descend from `vocab_size - 1`. Where
        the vocabulary has extra ids, all sentinels must lie in them, so that no ordinary id is
        taken. Where it has none they are its last ordinary ids, as in T5X (mT5's sentinels are
        pieces of its model, ByT5's are 258 downward): then there must be that many ids beside
        padding, end of sequence and unknown. A SentencePiece model without extra ids is not read
        for that until the loader gives `vocab_size`.
        """
        lengths, noise = self.task_feature_lengths, self.span_corruption
        num_tokens, targets_length = span_corruption_lengths(
            lengths["inputs"], noise.noise_density, noise.mean_noise_span_length
        )
        if lengths["targets"] < targets_length:
            raise UserError(
                f"data.task_feature_lengths['targets']: {lengths['targets']} is too small; span "
                f"corruption of {num_tokens} tokens to inputs of {lengths['inputs']} gives "
                f"{targets_length} targets"
            )
        _, num_sentinels = num_noise_tokens_and_spans(
            num_tokens, noise.noise_density, noise.mean_noise_span_length
        )
        extra_ids = self.vocabulary.extra_ids
        if isinstance(self.vocabulary, ByteVocabulary):
            vocab_size = self.vocabulary.vocab_size
        if 0 < extra_ids < num_sentinels:
            raise UserError(
                f"data.vocabulary.extra_ids: {extra_ids} are too few; segments of {num_tokens} "
                f"tokens need {num_sentinels} sentinels"
            )
        if not extra_ids and vocab_size is not None and vocab_size - 3 < num_sentinels:
            raise UserError(
                f"data.vocabulary: {vocab_size} ids are too few; segments of {num_tokens} tokens "
                f"need {num_sentinels} sentinels beside padding, end of sequence and unknown"
            )
        return num_tokens, targets_length
