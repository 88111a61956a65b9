"""Data: files to documents or pairs, examples, packed batches. `loader` is where to enter."""

from mtf.data.config import HubStream, TaskMixture, TextCorpora, TextFiles
from mtf.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

__all__ = [
    "BertStyle",
    "ByteVocabulary",
    "HubStream",
    "IidDenoising",
    "PrefixLM",
    "SentencePieceVocabulary",
    "SpanCorruption",
    "TaskMixture",
    "TextCorpora",
    "TextFiles",
]
