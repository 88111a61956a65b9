"""Encodes text as the token ids that a model reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtf.data.text.vocabularies import Vocabulary


def encode_feature(
    vocabulary: Vocabulary,
    text: str | Sequence[int] | np.ndarray,
    *,
    add_eos: bool,
    max_length: int | None = None,
) -> np.ndarray:
    """Encodes a text or copies token ids; returns the ids as a (num_tokens,) int32 array.

    If `max_length` is given, the array contains at most that many ids, including EOS if `add_eos`.
    """
    ids = vocabulary.encode(text) if isinstance(text, str) else text
    kept = ids if max_length is None else ids[: max_length - add_eos]
    tokens = np.empty(len(kept) + add_eos, np.int32)
    tokens[: len(kept)] = kept
    if add_eos:
        tokens[-1] = vocabulary.eos_id
    return tokens
