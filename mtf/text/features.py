"""Text to token ids as models are fed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtf.text.vocabularies import Vocabulary


def encode_feature(
    vocabulary: Vocabulary,
    text: str | Sequence[int] | np.ndarray,
    *,
    add_eos: bool,
    max_length: int | None = None,
) -> np.ndarray:
    """Returns the token ids of `text`, (num_tokens,) int32, truncated to `max_length`.

    With `add_eos` the last one is end of sequence. `text` may be token ids already.
    """
    ids = vocabulary.encode(text) if isinstance(text, str) else text
    kept = ids if max_length is None else ids[: max_length - add_eos]
    tokens = np.empty(len(kept) + add_eos, np.int32)
    tokens[: len(kept)] = kept
    if add_eos:
        tokens[-1] = vocabulary.eos_id
    return tokens
