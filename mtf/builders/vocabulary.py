"""The vocabularies of the released models."""

from __future__ import annotations

import fiddle as fdl

from mtf.text.vocabularies import RELEASED_MODELS, SentencePieceVocabulary

# These files are downloaded at first use.
T5_PATH = RELEASED_MODELS["t5"]
MT5_PATH = RELEASED_MODELS["mt5"]


def t5(path: str = T5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """T5's 32,000 pieces and 100 sentinels after them."""
    return fdl.Config(SentencePieceVocabulary, path, extra_ids=100)


def mt5(path: str = MT5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """mT5's 250,100 pieces, the last 100 of which are the sentinels."""
    return fdl.Config(SentencePieceVocabulary, path, extra_ids=0)
