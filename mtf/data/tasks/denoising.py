"""Computes with the noise tokens of a segment, for the objectives in `objectives.py`."""

from __future__ import annotations

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
_NUM_RESERVED_IDS = 3  # padding, EOS and unknown, which are never used as random tokens


def corrupted(tokens: np.ndarray, mask: np.ndarray, vocab_size: int) -> Pair:
    """Returns inputs without the spans of noise that `mask` selects, and these spans as targets."""
    return replace_spans(tokens, mask, vocab_size), replace_spans(tokens, ~mask, vocab_size)


def noise_mask(length: int, num_noise: int, num_spans: int, bits: np.ndarray) -> np.ndarray:
    """Returns a boolean mask of shape (length,) that selects the noise tokens for span corruption.

    Kept spans and `num_spans` noise spans alternate. The first span is kept, and the last span is
    noise. If there is only one token, it is kept. `bits` contains at least `length` random uint64
    values.
    """
    num_tokens = max(length, 2)
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


def limit_noise(mask: np.ndarray, targets_length: int, most_sentinels: int) -> np.ndarray:
    """Removes the last noise tokens from `mask` if they yield too many targets or sentinels."""
    kept_spans, noise_spans = np.cumsum(_span_starts(~mask)), np.cumsum(_span_starts(mask))
    num_targets = np.cumsum(mask) + kept_spans + 1
    num_sentinels = np.maximum(kept_spans, noise_spans)
    if num_targets[-1] <= targets_length and num_sentinels[-1] <= most_sentinels:
        return mask
    # The tokens after the last noise token form one more kept span, which adds a sentinel.
    return mask & (num_targets < targets_length) & (num_sentinels < most_sentinels)


def mask_tokens(
    tokens: np.ndarray,
    noise_density: float,
    random_token_rate: float,
    vocab_size: int,
    bits: np.ndarray,
) -> np.ndarray:
    """Returns `tokens` with noise tokens replaced by the first sentinel or by random tokens.

    `bits` contains at least three random uint64 values per token.
    """
    is_noise, is_random, random_ids = bits[: 3 * len(tokens)].reshape(3, -1)
    num_ids = vocab_size - _NUM_RESERVED_IDS
    replacement = np.where(
        less_than(is_random, random_token_rate),
        (_NUM_RESERVED_IDS + random_ids % np.uint64(num_ids)).astype(tokens.dtype),
        vocab_size - 1,
    )
    return np.where(less_than(is_noise, noise_density), replacement, tokens)


def less_than(bits: np.ndarray, probability: float) -> np.ndarray:
    """Maps each uint64 to a number in [0, 1), and returns whether it is less than `probability`."""
    return (bits >> np.uint64(11)) * 2.0**-53 < probability
