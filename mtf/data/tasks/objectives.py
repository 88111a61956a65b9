"""Defines self-supervised objectives, which turn documents into inputs and targets.

See https://arxiv.org/abs/1910.10683, section 3, and t5/data/preprocessors.py. The number of noise
tokens is the exact product of the length and the noise density, rounded half to even. T5 computes
this product in float32, which yields one more noise token for a few lengths, such as 190.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from mtf.base.checks import AT_LEAST_ONE, FRACTION, check_fields
from mtf.base.errors import UserError

if TYPE_CHECKING:  # Showing a recipe needs no NumPy.
    import numpy as np

Ids: TypeAlias = "np.ndarray"
Pair: TypeAlias = "tuple[np.ndarray, np.ndarray]"
# The objectives, which `mtf.data` exports.
__all__ = ["BertStyle", "IidDenoising", "PrefixLM", "SpanCorruption"]


class SegmentLengths(NamedTuple):
    """The lengths of an objective's segments and targets.

    Attributes:
      num_tokens: number of tokens per segment; the last segment of a group of documents may be
        shorter.
      targets_length: maximum number of target tokens per segment, including EOS.
      num_sentinels: maximum number of sentinels per segment.
    """

    num_tokens: int
    targets_length: int
    num_sentinels: int


def num_noise_tokens_and_spans(
    length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
    """Returns the number of noise tokens among `length` tokens, and the number of noise spans.

    Both numbers are rounded half to even and are at least 1. At least one token is not noise, and
    the number of spans is at most the number of tokens that are not noise. A length below 2 is
    treated as 2.
    """
    length = max(length, 2)
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = max(round(num_noise / mean_noise_span_length), 1)
    return num_noise, min(num_spans, length - num_noise)


@functools.lru_cache
def span_corruption_lengths(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Returns (tokens_length, targets_length) for span corruption with inputs of `inputs_length`.

    `tokens_length` is the maximum number of tokens that yield at most `inputs_length` input tokens,
    and `targets_length` is the number of target tokens that these tokens yield. Both inputs and
    targets include EOS. Raises UserError if `inputs_length` is too small for a noise span.
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
            f"data.task_feature_lengths['inputs']: {inputs_length} tokens are too few for span "
            f"corruption with noise_density={noise_density:g} and mean_noise_span_length="
            f"{mean_noise_span_length:g}: {num_tokens} tokens would have {num_noise} noise tokens "
            f"in {num_spans} spans. Increase this length or decrease mean_noise_span_length"
        )
    if noise_density == 0.5 and targets > inputs_length:
        # As in T5, targets are not longer than inputs.
        num_tokens, targets = num_tokens - 1, targets - 1
    return num_tokens, targets


@dataclass(frozen=True, kw_only=True)
class Objective(abc.ABC):
    """An objective, which divides documents into segments and makes an example from each segment.

    Subclasses implement `segment_lengths` and `apply`.

    Attributes:
      merge_documents: number of documents that are concatenated and then divided into segments.
      max_document_tokens: maximum number of tokens used from each document. A longer document is
        cut into chunks of this length, and only one of these, chosen at random, is used.
    """

    # Number of random uint64 values that `apply` receives per token of a segment.
    bits_per_token: ClassVar[int] = 3

    merge_documents: int = 128
    max_document_tokens: int = 65536

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "merge_documents", "max_document_tokens")

    @abc.abstractmethod
    def segment_lengths(self, lengths: Mapping[str, int], inputs_add_eos: bool) -> SegmentLengths:
        """Returns the lengths for which the inputs and targets of each segment fit into `lengths`.

        Raises UserError if `lengths` (the numbers of tokens of "inputs" and "targets", including
        EOS) are too short.
        """

    @abc.abstractmethod
    def apply(self, tokens: Ids, lengths: SegmentLengths, vocab_size: int, bits: Ids) -> Pair:
        """Returns the inputs and targets made from a segment, as token ids without EOS.

        Args:
          tokens: array of 1 to `lengths.num_tokens` token ids without padding.
          lengths: the lengths that `segment_lengths` returns.
          vocab_size: number of ids, including extra ids. Sentinel ids count down from
            `vocab_size - 1`.
          bits: array of `bits_per_token * len(tokens)` random uint64 values.
        """

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, and as "type" the name of the class, as stored in a token cache."""
        cls = type(self)
        module = "" if cls.__module__ == __name__ else f"{cls.__module__}."
        return {"type": f"{module}{cls.__name__}", **dataclasses.asdict(self)}


@dataclass(frozen=True, kw_only=True)
class _Denoising(Objective):
    """An objective that treats some tokens as noise.

    Attributes:
      noise_density: fraction of tokens that are noise.
    """

    noise_density: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, FRACTION, "noise_density")


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(_Denoising):
    """T5's denoising objective (https://arxiv.org/abs/1910.10683, section 3.1.4).

    Attributes:
      mean_noise_span_length: mean number of tokens in a noise span.
    """

    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, AT_LEAST_ONE, "mean_noise_span_length")

    def segment_lengths(self, lengths: Mapping[str, int], inputs_add_eos: bool) -> SegmentLengths:
        """See `Objective`."""
        # As in T5X, inputs are one token shorter if they do not end with EOS.
        inputs_length = lengths["inputs"]
        density, span = self.noise_density, self.mean_noise_span_length
        num_tokens, targets_length = span_corruption_lengths(inputs_length, density, span)
        why = f"span corruption of {num_tokens} tokens to {inputs_length} input tokens yields "
        _check_targets(lengths, targets_length, why + f"{targets_length} target tokens")
        _, num_spans = num_noise_tokens_and_spans(num_tokens, density, span)
        return SegmentLengths(num_tokens, targets_length, num_spans)

    def apply(self, tokens: Ids, lengths: SegmentLengths, vocab_size: int, bits: Ids) -> Pair:
        """See `Objective`."""
        from mtf.data.tasks import denoising

        density, span = self.noise_density, self.mean_noise_span_length
        numbers = num_noise_tokens_and_spans(len(tokens), density, span)
        mask = denoising.noise_mask(len(tokens), *numbers, bits)
        return denoising.corrupted(tokens, mask, vocab_size)


@dataclass(frozen=True, kw_only=True)
class IidDenoising(_Denoising):
    """T5's i.i.d. denoising, in which each token is noise with the same probability.

    Unlike in T5, targets are never truncated: if a segment would yield too many target tokens or
    sentinels, its last noise tokens are left in the inputs. This happens in fewer than one in ten
    thousand segments.
    """

    def segment_lengths(self, lengths: Mapping[str, int], inputs_add_eos: bool) -> SegmentLengths:
        """See `Objective`."""
        num_tokens = _num_inputs(lengths, inputs_add_eos, "i.i.d. denoising")
        density = self.noise_density
        # A noise span starts at each noise token that follows a token that is not noise.
        start = density * (1 - density)
        spread = num_tokens * start
        mean_spans = spread + 1
        mean_targets = num_tokens * density + mean_spans
        # Fewer than one in ten thousand segments are over four standard deviations above the mean.
        spans = mean_spans + 4 * math.sqrt(spread * (1 - 3 * start))
        targets = mean_targets + 4 * math.sqrt(spread * (4 - 3 * start - 4 * density))
        num_spans = min(math.ceil(spans), num_tokens // 2 + 1)
        targets_length = min(math.ceil(targets), num_tokens) + 1
        why = f"i.i.d. denoising of {num_tokens} tokens yields up to {targets_length} target tokens"
        _check_targets(lengths, targets_length, why)
        return SegmentLengths(num_tokens, targets_length, num_spans)

    def apply(self, tokens: Ids, lengths: SegmentLengths, vocab_size: int, bits: Ids) -> Pair:
        """See `Objective`."""
        from mtf.data.tasks import denoising

        mask = denoising.less_than(bits[: len(tokens)], self.noise_density)
        mask = denoising.limit_noise(mask, lengths.targets_length, lengths.num_sentinels)
        return denoising.corrupted(tokens, mask, vocab_size)


@dataclass(frozen=True, kw_only=True)
class BertStyle(_Denoising):
    """T5's version of BERT's objective: noise tokens are masked or replaced in the inputs only.

    Each token is noise with the same probability. The first sentinel serves as the mask. The
    targets are the original tokens.

    Attributes:
      random_token_rate: fraction of noise tokens that are replaced with a random token instead of
        the mask.
    """

    random_token_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, ("in [0, 1]", lambda x: 0 <= x <= 1), "random_token_rate")

    def segment_lengths(self, lengths: Mapping[str, int], inputs_add_eos: bool) -> SegmentLengths:
        """See `Objective`."""
        num_tokens = _num_inputs(lengths, inputs_add_eos, "BERT's objective")
        why = f"BERT's objective needs room for all {num_tokens} tokens of a segment and EOS"
        _check_targets(lengths, num_tokens + 1, why)
        return SegmentLengths(num_tokens, num_tokens + 1, 1)

    def apply(self, tokens: Ids, lengths: SegmentLengths, vocab_size: int, bits: Ids) -> Pair:
        """See `Objective`."""
        from mtf.data.tasks import denoising

        rates = self.noise_density, self.random_token_rate
        return denoising.mask_tokens(tokens, *rates, vocab_size, bits), tokens


@dataclass(frozen=True, kw_only=True)
class PrefixLM(Objective):
    """Prefix language modeling: each segment is split at random into inputs and targets.

    As in T5 (`preprocessors.prefix_lm`), documents are not concatenated, and a segment contains as
    many tokens as the inputs can hold.

    Attributes:
      truncate_targets: whether, as in T5, any split point of a segment may be chosen and targets
        that are too long are truncated. If False, only split points for which all targets fit are
        chosen.
    """

    merge_documents: int = 1
    truncate_targets: bool = True

    def segment_lengths(self, lengths: Mapping[str, int], inputs_add_eos: bool) -> SegmentLengths:
        """See `Objective`."""
        num_tokens = _num_inputs(lengths, inputs_add_eos, "prefix language modeling")
        _check_targets(lengths, 2, "prefix language modeling needs room for one token and EOS")
        return SegmentLengths(num_tokens, min(lengths["targets"], num_tokens), 0)

    def apply(self, tokens: Ids, lengths: SegmentLengths, vocab_size: int, bits: Ids) -> Pair:
        """See `Objective`."""
        most_targets = lengths.targets_length - 1
        fewest = 1 if self.truncate_targets else max(1, len(tokens) - most_targets)
        fewest = min(fewest, len(tokens) - 1)  # At least one token is left for the targets.
        split = fewest + int(bits[0]) % (len(tokens) - fewest)
        return tokens[:split], tokens[split : split + most_targets]


def from_json(values: Mapping[str, Any], where: str) -> Objective:
    """Returns the objective that `Objective.as_json` described.

    Raises a UserError that starts with `where` if no module that has been imported defines it.
    """
    fields = dict(values)
    name = str(fields.pop("type", None))
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules.get(module or __name__), cls, None)
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise UserError(
            f"{where} an unknown objective {name!r}; expected one of {', '.join(__all__)}, or an "
            "objective that the module data.module defines"
        )
    return found(**fields)


def _num_inputs(lengths: Mapping[str, int], inputs_add_eos: bool, name: str) -> int:
    """Returns the number of input tokens without EOS; raises UserError if it is less than two."""
    num_tokens = lengths["inputs"] - inputs_add_eos
    if num_tokens < 2:
        raise UserError(
            f"data.task_feature_lengths['inputs'] must be at least {2 + inputs_add_eos}, not "
            f"{lengths['inputs']}: {name} needs room for two tokens{' and EOS' * inputs_add_eos}"
        )
    return num_tokens


def _check_targets(lengths: Mapping[str, int], needed: int, why: str) -> None:
    if lengths["targets"] < needed:
        raise UserError(
            f"data.task_feature_lengths['targets'] must be at least {needed}, not "
            f"{lengths['targets']}: {why}"
        )
