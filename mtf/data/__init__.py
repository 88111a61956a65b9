"""Data: files to documents or pairs, examples, packed batches. `loader` is where to enter."""

from mtf.data.config import SpanCorruption, TextFiles
from mtf.data.vocabularies import ByteVocabulary, SentencePieceVocabulary

__all__ = ["ByteVocabulary", "SentencePieceVocabulary", "SpanCorruption", "TextFiles"]
