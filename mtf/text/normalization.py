"""Changes to text before it is tokenised."""

from __future__ import annotations

from typing import Literal, TypeAlias

Normalization: TypeAlias = Literal["romanian_diacritics"] | None

_TABLES = {
    # Romanian has ș and ț with a comma below; older encodings have only their cedilla look-alikes.
    "romanian_diacritics": str.maketrans("şţŞŢ", "șțȘȚ"),
}


def normalize(text: str, normalization: Normalization) -> str:
    """Returns `text` as the named normalization writes it; None: as it is."""
    return text if normalization is None else text.translate(_TABLES[normalization])
