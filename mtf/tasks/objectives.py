"""Self-supervised objectives, as settings: how a segment of tokens becomes inputs and targets.

Nothing here computes on tokens; `mtf.data.denoising` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mtf.errors import UserError


class SegmentLengths(NamedTuple):
    """What an objective makes of the segments of documents.

    Attributes:
      num_tokens: tokens of a segment; the last one of a document, or of a group, may have fewer.
      targets_length: the most targets that a segment gives, including end of sequence.
      num_sentinels: the most sentinels, counted from the vocabulary's last id down.
    """

    num_tokens: int
    targets_length: int
    num_sentinels: int


def num_noise_tokens_and_spans(
    length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
    """Returns how many of `length` tokens are noise, and in how many spans.

    Both are rounded half to even. There is at least one of each, at least one token stays, and
    spans do not outnumber the tokens that stay. A length below 2 counts as 2.
    """
    length = max(length, 2)
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = max(round(num_noise / mean_noise_span_length), 1)
    return num_noise, min(num_spans, length - num_noise)


@functools.lru_cache
def span_corruption_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Returns (tokens_length, targets_length) for span corruption to `inputs_length`.

    `tokens_length` tokens become exactly `targets_length` targets and at most `inputs_length`
    inputs, each including end of sequence; more tokens would not fit the inputs.

    Raises:
      UserError: the length is too small for a noise span of the requested kind.
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


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How documents are cut into segments, for any objective (T5X: t5's preprocessors).

    Attributes:
      merge_documents: documents that are concatenated before they are cut into segments.
      max_document_tokens: of a longer document, one random aligned chunk of this size is used.
    """

    merge_documents: int = 128
    max_document_tokens: int = 65536

    def __post_init__(self) -> None:
        for name in ("merge_documents", "max_document_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"data.objective.{name}: {getattr(self, name)} is less than 1")

    def segment_lengths(
        self, task_feature_lengths: Mapping[str, int], inputs_add_eos: bool
    ) -> SegmentLengths:
        """Returns the lengths for rows with these lengths of `inputs` and `targets`.

        No segment, or shorter one, gives more than fits; raises UserError if they are too short.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _Denoising(Segments):
    """An objective that takes part of the tokens as noise.

    Attributes:
      noise_density: the fraction of tokens that are noise.
    """

    noise_density: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.noise_density < 1:
            raise UserError(
                f"data.objective.noise_density: {self.noise_density} is not between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(_Denoising):
    """T5's denoising objective (https://arxiv.org/abs/1910.10683, section 3.1.4).

    Attributes:
      mean_noise_span_length: tokens in a noise span, on average.
    """

    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_noise_span_length < 1:
            raise UserError(
                f"data.objective.mean_noise_span_length: {self.mean_noise_span_length} "
                "is less than one token"
            )

    def segment_lengths(
        self, task_feature_lengths: Mapping[str, int], inputs_add_eos: bool
    ) -> SegmentLengths:
        """See `Segments`. Inputs without end of sequence are one shorter, as in T5X."""
        inputs_length = task_feature_lengths["inputs"]
        density, span = self.noise_density, self.mean_noise_span_length
        num_tokens, targets_length = span_corruption_lengths(inputs_length, density, span)
        why = f"span corruption of {num_tokens} tokens to inputs of {inputs_length} gives "
        _check_targets(task_feature_lengths, targets_length, why + f"{targets_length} targets")
        _, num_spans = num_noise_tokens_and_spans(num_tokens, density, span)
        return SegmentLengths(num_tokens, targets_length, num_spans)


@dataclass(frozen=True, kw_only=True)
class IidDenoising(_Denoising):
    """T5's i.i.d. denoising: every token is noise with the same chance; spans become sentinels.

    Unlike T5's, targets are not truncated: if a segment has so much noise that it would give too
    many targets or sentinels (fewer than one in ten thousand does), the last noise tokens stay in
    the inputs.
    """

    def segment_lengths(
        self, task_feature_lengths: Mapping[str, int], inputs_add_eos: bool
    ) -> SegmentLengths:
        """See `Segments`. There are as many tokens as inputs."""
        num_tokens = _num_inputs(task_feature_lengths, inputs_add_eos, "i.i.d. denoising")
        density = self.noise_density
        # A span starts where one token of a pair is noise and the other is not.
        start = density * (1 - density)
        spread = num_tokens * start
        mean_spans = spread + 1
        mean_targets = num_tokens * density + mean_spans
        # Four standard deviations: a segment in ten thousand or less is beyond.
        spans = mean_spans + 4 * math.sqrt(spread * (1 - 3 * start))
        targets = mean_targets + 4 * math.sqrt(spread * (4 - 3 * start - 4 * density))
        num_spans = min(math.ceil(spans), num_tokens // 2 + 1)
        targets_length = min(math.ceil(targets), num_tokens) + 1
        why = f"i.i.d. denoising of {num_tokens} tokens gives up to {targets_length} targets"
        _check_targets(task_feature_lengths, targets_length, why)
        return SegmentLengths(num_tokens, targets_length, num_spans)


@dataclass(frozen=True, kw_only=True)
class BertStyle(_Denoising):
    """BERT's objective in T5's form: noise tokens are masked or replaced, targets are all tokens.

    Every token is noise with the same chance. The mask is the first sentinel.

    Attributes:
      random_token_rate: the fraction of the noise that becomes a random token, not a sentinel.
    """

    random_token_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.random_token_rate <= 1:
            raise UserError(
                f"data.objective.random_token_rate: {self.random_token_rate} is not between 0 and 1"
            )

    def segment_lengths(
        self, task_feature_lengths: Mapping[str, int], inputs_add_eos: bool
    ) -> SegmentLengths:
        """See `Segments`. There are as many tokens as inputs, and as targets."""
        num_tokens = _num_inputs(task_feature_lengths, inputs_add_eos, "BERT's objective")
        why = f"BERT's objective has all {num_tokens} tokens of a segment as targets, and end of "
        _check_targets(task_feature_lengths, num_tokens + 1, why + "sequence")
        return SegmentLengths(num_tokens, num_tokens + 1, 1)


@dataclass(frozen=True, kw_only=True)
class PrefixLM(Segments):
    """Prefix language modeling: a random split point; inputs before it, targets after it.

    As in T5, documents are not concatenated, and a segment has as many tokens as inputs, of which
    one to all but one are inputs. Unlike T5's, targets are not truncated if they are configured
    shorter than inputs: the split point is then drawn from those that leave them room.
    """

    merge_documents: int = 1

    def segment_lengths(
        self, task_feature_lengths: Mapping[str, int], inputs_add_eos: bool
    ) -> SegmentLengths:
        """See `Segments`."""
        num_tokens = _num_inputs(task_feature_lengths, inputs_add_eos, "prefix language modelling")
        _check_targets(task_feature_lengths, 2, "they need room for a token and end of sequence")
        return SegmentLengths(num_tokens, min(task_feature_lengths["targets"], num_tokens), 0)


Objective: TypeAlias = SpanCorruption | IidDenoising | BertStyle | PrefixLM


def _num_inputs(task_feature_lengths: Mapping[str, int], inputs_add_eos: bool, name: str) -> int:
    """Returns the number of inputs without end of sequence; two or more."""
    num_tokens = task_feature_lengths["inputs"] - inputs_add_eos
    if num_tokens < 2:
        raise UserError(
            f"data.task_feature_lengths['inputs']: {task_feature_lengths['inputs']} is too small "
            f"for {name}; expected room for two tokens or more"
        )
    return num_tokens


def _check_targets(task_feature_lengths: Mapping[str, int], needed: int, why: str) -> None:
    if task_feature_lengths["targets"] < needed:
        raise UserError(
            f"data.task_feature_lengths['targets']: {task_feature_lengths['targets']} is too "
            f"small; {why}"
        )
