"""Vocabularies."""

from __future__ import annotations

import fiddle as fdl

from mtf.text.vocabularies import RELEASED_MODELS, ByteVocabulary, SentencePieceVocabulary

# Downloaded at first use.
T5_PATH = RELEASED_MODELS["t5"]
MT5_PATH = RELEASED_MODELS["mt5"]


def byte(extra_ids: int = 0) -> fdl.Config[ByteVocabulary]:
    """UTF-8 bytes with ByT5's ids; `extra_ids` sentinels above them (ByT5 itself has none)."""
    return fdl.Config(ByteVocabulary, extra_ids=extra_ids)


def sentencepiece(path: str, extra_ids: int = 100) -> fdl.Config[SentencePieceVocabulary]:
    """A SentencePiece model; T5's has 100 extra ids, mT5's has its sentinels as pieces (0)."""
    return fdl.Config(SentencePieceVocabulary, path=path, extra_ids=extra_ids)


def t5(path: str = T5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """T5's 32,000 pieces and 100 sentinels above them, which may be pieces of the model."""
    return sentencepiece(path, extra_ids=100)


def mt5(path: str = MT5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """mT5's 250,100 pieces, of which the last 100 are its sentinels."""
    return sentencepiece(path, extra_ids=0)
