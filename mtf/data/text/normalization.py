"""Normalizes text before it is tokenized."""

from __future__ import annotations

from typing import Literal, TypeAlias

Normalization: TypeAlias = Literal["romanian_diacritics"] | None

_TABLES = {
    # Romanian uses ș and ț with a comma below; older encodings only support them with a cedilla.
    "romanian_diacritics": str.maketrans("şţŞŢ", "șțȘȚ"),
}


def normalize(text: str, normalization: Normalization) -> str:
    """Returns the normalized text, or `text` itself if `normalization` is None."""
    return text if normalization is None else text.translate(_TABLES[normalization])
