"""Turns documents and pairs of texts into examples, and packs the examples into batches."""

from mtf.base.lazy import submodules
from mtf.data.settings import (
    CustomDataConfig,
    DatasetTaskConfig,
    HubStreamConfig,
    TaskMixtureConfig,
    TextCorporaConfig,
    TextFilesConfig,
)
from mtf.data.tasks import objectives
from mtf.data.tasks.objectives import *  # noqa: F403
from mtf.data.tasks.objectives import Objective, SegmentLengths
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, TokenizerVocabulary

__getattr__ = submodules(__name__, "cache")
__all__ = [
    *objectives.__all__,
    "ByteVocabulary",
    "CustomDataConfig",
    "DatasetTaskConfig",
    "HubStreamConfig",
    "Objective",
    "SegmentLengths",
    "SentencePieceVocabulary",
    "TaskMixtureConfig",
    "TextCorporaConfig",
    "TextFilesConfig",
    "TokenizerVocabulary",
]
