"""Span corruption: segments of documents become inputs with sentinels and targets with spans.

T5 (https://arxiv.org/abs/1910.10683), section 3.1.4; lengths, random segmentation and sentinels are
those of T5X's pretraining tasks. Roundings are half to even of the exact product; TensorFlow's
float32 product gives a few lengths (190, …) one noise token more.
"""

from __future__ import annotations

import numpy as np

from mtf.data.objectives import SpanCorruption, num_noise_tokens_and_spans


def noise_mask(length: int, config: SpanCorruption, bits: np.ndarray) -> np.ndarray:
    """Returns which of `length` tokens are noise, (length,) bool.

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
    starts = mask & ~np.concatenate(([False], mask[:-1]))
    return np.where(starts, vocab_size - np.cumsum(starts), tokens)[starts | ~mask]


def corrupt(
    tokens: np.ndarray, config: SpanCorruption, vocab_size: int, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs, targets) of a segment, neither with end of sequence.

    Args:
      tokens: (length,) ids without padding.
      config: density and span length.
      vocab_size: of the vocabulary, with its extra ids.
      bits: random uint64, at least as many as tokens.
    """
    mask = noise_mask(len(tokens), config, bits)
    return replace_spans(tokens, mask, vocab_size), replace_spans(tokens, ~mask, vocab_size)


def _random_segmentation(num_items: int, num_segments: int, bits: np.ndarray) -> np.ndarray:
    """Returns the lengths of a random division into segments that are not empty, (segments,).

    Every choice of `num_segments - 1` out of the `num_items - 1` gaps (one number of `bits` each)
    is equally likely.
    """
    gaps = np.argsort(bits, kind="stable")[: num_segments - 1] + 1
    edges = np.concatenate(([0], np.sort(gaps), [num_items]))
    return np.diff(edges)
