"""Self-supervised objectives, as plain values: how a segment of tokens becomes inputs and targets.

Nothing is computed on tokens here; `mtf.data.denoising` does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mtf.errors import UserError


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


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How documents are cut into segments, whatever the objective (T5X: t5's preprocessors).

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


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(Segments):
    """T5's denoising objective (https://arxiv.org/abs/1910.10683, section 3.1.4).

    Attributes:
      noise_density: the part of the tokens that is noise.
      mean_noise_span_length: tokens in a noise span, on average.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.noise_density)
        if self.mean_noise_span_length < 1:
            raise UserError(
                f"data.objective.mean_noise_span_length: {self.mean_noise_span_length} "
                "is less than one token"
            )


@dataclass(frozen=True, kw_only=True)
class IidDenoising(Segments):
    """T5's i.i.d. denoising: every token is noise with the same chance; spans become sentinels.

    Attributes:
      noise_density: the part of the tokens that is noise.
    """

    noise_density: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.noise_density)


@dataclass(frozen=True, kw_only=True)
class BertStyle(Segments):
    """BERT's objective as T5 has it: noise tokens are masked or replaced, targets are everything.

    Attributes:
      noise_density: the part of the tokens that is noise.
      random_token_rate: the part of the noise that becomes a random token instead of a sentinel.
    """

    noise_density: float = 0.15
    random_token_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.noise_density)
        if not 0 <= self.random_token_rate <= 1:
            raise UserError(
                f"data.objective.random_token_rate: {self.random_token_rate} is not between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True)
class PrefixLM(Segments):
    """Prefix language modelling: a random split point; inputs before it, targets after it."""


Objective: TypeAlias = SpanCorruption | IidDenoising | BertStyle | PrefixLM


def _check_density(noise_density: float) -> None:
    if not 0 < noise_density < 1:
        raise UserError(f"data.objective.noise_density: {noise_density} is not between 0 and 1")
