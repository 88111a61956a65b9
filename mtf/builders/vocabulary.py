"""Vocabularies."""

from __future__ import annotations

import fiddle as fdl

from mtf.data.vocabularies import ByteVocabulary, SentencePieceVocabulary


def byte(extra_ids: int = 0) -> fdl.Config[ByteVocabulary]:
    """UTF-8 bytes with ByT5's ids; `extra_ids` sentinels above them (ByT5 itself has none)."""
    return fdl.Config(ByteVocabulary, extra_ids=extra_ids)


def sentencepiece(path: str, extra_ids: int = 100) -> fdl.Config[SentencePieceVocabulary]:
    """A SentencePiece model; T5's has 100 extra ids, mT5's has its sentinels as pieces (0)."""
    return fdl.Config(SentencePieceVocabulary, path=path, extra_ids=extra_ids)
