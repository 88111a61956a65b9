"""Data: documents or pairs become examples, and examples packed batches. See `mtf.loaders`."""

from mtf.data.settings import (
    DatasetTaskConfig,
    HubStreamConfig,
    OwnDataConfig,
    TaskMixtureConfig,
    TextCorporaConfig,
    TextFilesConfig,
)
from mtf.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

__all__ = [
    "BertStyle",
    "ByteVocabulary",
    "DatasetTaskConfig",
    "HubStreamConfig",
    "IidDenoising",
    "OwnDataConfig",
    "PrefixLM",
    "SentencePieceVocabulary",
    "SpanCorruption",
    "TaskMixtureConfig",
    "TextCorporaConfig",
    "TextFilesConfig",
]
