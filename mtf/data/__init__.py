"""Turns documents and pairs of texts into examples, and packs the examples into batches."""

from mtf.data.settings import (
    CustomDataConfig,
    DatasetTaskConfig,
    HubStreamConfig,
    TaskMixtureConfig,
    TextCorporaConfig,
    TextFilesConfig,
)
from mtf.data.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

__all__ = [
    "BertStyle",
    "ByteVocabulary",
    "CustomDataConfig",
    "DatasetTaskConfig",
    "HubStreamConfig",
    "IidDenoising",
    "PrefixLM",
    "SentencePieceVocabulary",
    "SpanCorruption",
    "TaskMixtureConfig",
    "TextCorporaConfig",
    "TextFilesConfig",
]
