"""Defines tasks, mixtures, prompts and objectives, which turn dataset records into examples."""

from mtf.data.sources.records import FileSource, RecordSource
from mtf.data.tasks.metrics import metric
from mtf.data.tasks.registry import HubSource, register, register_mixture

__all__ = [
    "FileSource",
    "HubSource",
    "RecordSource",
    "metric",
    "register",
    "register_mixture",
]
