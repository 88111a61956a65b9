"""Objectives on tokens: a segment of documents becomes inputs and targets.

`apply_objective` is where to enter. The objectives are those of T5
(https://arxiv.org/abs/1910.10683, section 3; t5/data/preprocessors.py): span corruption, i.i.d.
denoising, BERT's and prefix language modelling. Roundings are half to even of the exact product;
TensorFlow's float32 product gives a few lengths (190, …) one noise token more.
"""

from __future__ import annotations

import numpy as np

from mtf.tasks.objectives import (
    BertStyle,
    IidDenoising,
    Objective,
    PrefixLM,
    SegmentLengths,
    SpanCorruption,
    num_noise_tokens_and_spans,
)

# Random numbers that an objective may use for each token of a segment.
BITS_PER_TOKEN = 3
_NUM_RESERVED_IDS = 3  # padding, end of sequence and unknown, which no random token is


def apply_objective(
    tokens: np.ndarray,
    objective: Objective,
    lengths: SegmentLengths,
    vocab_size: int,
    bits: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs, targets) of a segment, neither with end of sequence.

    Args:
      tokens: (length,) ids without padding, one or more, at most `lengths.num_tokens`.
      objective: what is to be made of them.
      lengths: the objective's `segment_lengths`.
      vocab_size: of the vocabulary, with its extra ids; sentinels descend from `vocab_size - 1`.
      bits: random uint64, `BITS_PER_TOKEN * length` of them or more; nothing else decides.
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
            split = _split_point(len(tokens), lengths.targets_length - 1, bits)
            return tokens[:split], tokens[split:]
    return replace_spans(tokens, mask, vocab_size), replace_spans(tokens, ~mask, vocab_size)


def noise_mask(length: int, config: SpanCorruption, bits: np.ndarray) -> np.ndarray:
    """Returns which of `length` tokens are noise in span corruption, (length,) bool.

    Spans alternate, starting with one that stays and ending with noise. A single token stays.

    Args:
      length: number of tokens, 1 or more.
      config: density and span length.
      bits: random uint64, at least `length` of them; nothing else decides.
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
    """Returns `tokens` with each masked span replaced by one sentinel, from `vocab_size - 1` down.

    Args:
      tokens: (length,) ids.
      mask: (length,) bool.
      vocab_size: of the vocabulary, with its extra ids.
    """
    starts = _span_starts(mask)
    return np.where(starts, vocab_size - np.cumsum(starts), tokens)[starts | ~mask]


def _span_starts(mask: np.ndarray) -> np.ndarray:
    """Returns where a run of True begins, (length,) bool."""
    return mask & ~np.concatenate(([False], mask[:-1]))


def _random_segmentation(num_items: int, num_segments: int, bits: np.ndarray) -> np.ndarray:
    """Returns the lengths of a random division into segments that are not empty, (segments,).

    Every choice of `num_segments - 1` out of the `num_items - 1` gaps (one number of `bits` each)
    is equally likely.
    """
    gaps = np.argsort(bits, kind="stable")[: num_segments - 1] + 1
    edges = np.concatenate(([0], np.sort(gaps), [num_items]))
    return np.diff(edges)


def _limit_noise(mask: np.ndarray, lengths: SegmentLengths) -> np.ndarray:
    """Returns `mask` without its last noise, where targets or sentinels would be too many."""
    kept_spans, noise_spans = np.cumsum(_span_starts(~mask)), np.cumsum(_span_starts(mask))
    num_targets = np.cumsum(mask) + kept_spans + 1
    num_sentinels = np.maximum(kept_spans, noise_spans)
    if num_targets[-1] <= lengths.targets_length and num_sentinels[-1] <= lengths.num_sentinels:
        return mask
    # What follows the last noise is one more span of kept tokens.
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


def _split_point(length: int, max_targets: int, bits: np.ndarray) -> int:
    """Returns how many of `length` tokens are inputs; a single token is a target."""
    if length == 1:
        return 0
    fewest = max(1, length - max_targets)
    return fewest + int(bits[0] % np.uint64(length - fewest))


def _less_than(bits: np.ndarray, probability: float) -> np.ndarray:
    """Returns whether each uint64, as a number in [0, 1), is less than `probability`."""
    return (bits >> np.uint64(11)) * 2.0**-53 < probability
