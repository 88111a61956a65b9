"""Returns configs of the vocabularies of the released models."""

from __future__ import annotations

import fiddle as fdl

from mtf.data.text.vocabularies import RELEASED_MODELS, SentencePieceVocabulary

# These files are downloaded when they are first used.
T5_PATH = RELEASED_MODELS["t5"]
MT5_PATH = RELEASED_MODELS["mt5"]


def t5(path: str = T5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """Returns T5's vocabulary, which consists of 32,000 pieces followed by 100 sentinels."""
    return fdl.Config(SentencePieceVocabulary, path, extra_ids=100)


def mt5(path: str = MT5_PATH) -> fdl.Config[SentencePieceVocabulary]:
    """Returns mT5's vocabulary, which has 250,100 pieces; the last 100 of them are sentinels."""
    return fdl.Config(SentencePieceVocabulary, path, extra_ids=0)
