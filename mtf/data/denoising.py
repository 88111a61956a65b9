"""Applies T5's objectives to segments of tokens.

See https://arxiv.org/abs/1910.10683, section 3, and t5/data/preprocessors.py. The number of noise
tokens is the exact product of the length and the noise density, rounded half to even. T5 computes
this product in float32, which yields one more noise token for a few lengths, such as 190.
"""

from __future__ import annotations

import numpy as np

from mtf.data.tasks.objectives import (
    BertStyle,
    IidDenoising,
    Objective,
    PrefixLM,
    SegmentLengths,
    SpanCorruption,
    num_noise_tokens_and_spans,
)

# Maximum number of random uint64 values that an objective uses per token of a segment.
BITS_PER_TOKEN = 3
_NUM_RESERVED_IDS = 3  # padding, EOS and unknown, which are never used as random tokens


def apply_objective(
    tokens: np.ndarray,
    objective: Objective,
    lengths: SegmentLengths,
    vocab_size: int,
    bits: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and targets made from a segment, as token ids without EOS.

    Args:
      tokens: array of 1 to `lengths.num_tokens` token ids without padding.
      objective: the objective to apply.
      lengths: the segment lengths that the objective's method `segment_lengths` returns.
      vocab_size: number of ids, including extra ids. Sentinel ids count down from `vocab_size - 1`.
      bits: array of at least `BITS_PER_TOKEN * len(tokens)` random uint64 values.
    """
    match objective:
        case SpanCorruption():
            mask = noise_mask(len(tokens), objective, bits)
        case IidDenoising():
            mask = _less_than(bits[: len(tokens)], objective.noise_density)
            mask = _limit_noise(mask, lengths)
        case BertStyle():
            return _mask_tokens(tokens, objective, vocab_size, bits), tokens
        case PrefixLM():
            most_targets = lengths.targets_length - 1
            fewest = 1 if objective.truncate_targets else max(1, len(tokens) - most_targets)
            fewest = min(fewest, len(tokens) - 1)  # At least one token is left for the targets.
            split = fewest + int(bits[0] % np.uint64(len(tokens) - fewest))
            return tokens[:split], tokens[split : split + most_targets]
    return replace_spans(tokens, mask, vocab_size), replace_spans(tokens, ~mask, vocab_size)


def noise_mask(length: int, config: SpanCorruption, bits: np.ndarray) -> np.ndarray:
    """Returns a boolean mask of shape (length,) that selects the noise tokens for span corruption.

    Kept spans and noise spans alternate. The first span is kept, and the last span is noise. If
    there is only one token, it is kept. `bits` contains at least `length` random uint64 values.
    """
    num_tokens = max(length, 2)
    num_noise, num_spans = num_noise_tokens_and_spans(
        num_tokens, config.noise_density, config.mean_noise_span_length
    )
    num_kept = num_tokens - num_noise
    kept = _random_segmentation(num_kept, num_spans, bits[: num_kept - 1])
    noise = _random_segmentation(num_noise, num_spans, bits[num_kept - 1 : num_tokens - 2])
    lengths = np.stack([kept, noise], axis=1).reshape(-1)  # (2 * spans,)
    return np.repeat(np.arange(2 * num_spans) % 2 == 1, lengths)[:length]


def replace_spans(tokens: np.ndarray, mask: np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns `tokens` with one sentinel in place of each span that `mask` selects.

    Both `tokens` and the boolean `mask` have the shape (length,).
    """
    starts = _span_starts(mask)
    return np.where(starts, vocab_size - np.cumsum(starts), tokens)[starts | ~mask]


def _span_starts(mask: np.ndarray) -> np.ndarray:
    """Returns a boolean mask of shape (length,) that marks where runs of True in `mask` begin."""
    return mask & ~np.concatenate(([False], mask[:-1]))


def _random_segmentation(num_items: int, num_segments: int, bits: np.ndarray) -> np.ndarray:
    """Divides items uniformly at random into nonempty segments; returns the segments' lengths.

    `bits` contains one random number for each of the `num_items - 1` gaps between items.
    """
    gaps = np.argsort(bits, kind="stable")[: num_segments - 1] + 1
    edges = np.concatenate(([0], np.sort(gaps), [num_items]))
    return np.diff(edges)


def _limit_noise(mask: np.ndarray, lengths: SegmentLengths) -> np.ndarray:
    """Removes the last noise tokens from `mask` if they yield too many targets or sentinels."""
    kept_spans, noise_spans = np.cumsum(_span_starts(~mask)), np.cumsum(_span_starts(mask))
    num_targets = np.cumsum(mask) + kept_spans + 1
    num_sentinels = np.maximum(kept_spans, noise_spans)
    if num_targets[-1] <= lengths.targets_length and num_sentinels[-1] <= lengths.num_sentinels:
        return mask
    # The tokens after the last noise token form one more kept span, which adds a sentinel.
    return mask & (num_targets < lengths.targets_length) & (num_sentinels < lengths.num_sentinels)


def _mask_tokens(
    tokens: np.ndarray, objective: BertStyle, vocab_size: int, bits: np.ndarray
) -> np.ndarray:
    is_noise, is_random, random_ids = bits[: BITS_PER_TOKEN * len(tokens)].reshape(3, -1)
    num_ids = vocab_size - _NUM_RESERVED_IDS
    replacement = np.where(
        _less_than(is_random, objective.random_token_rate),
        (_NUM_RESERVED_IDS + random_ids % np.uint64(num_ids)).astype(tokens.dtype),
        vocab_size - 1,
    )
    return np.where(_less_than(is_noise, objective.noise_density), replacement, tokens)


def _less_than(bits: np.ndarray, probability: float) -> np.ndarray:
    """Maps each uint64 to a number in [0, 1), and returns whether it is less than `probability`."""
    return (bits >> np.uint64(11)) * 2.0**-53 < probability
