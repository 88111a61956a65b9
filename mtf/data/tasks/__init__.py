"""Defines tasks, mixtures, prompts and objectives, which turn dataset records into examples."""

from mtf.data.tasks.metrics import metric
from mtf.data.tasks.registry import FileSource, HubSource, register, register_mixture

__all__ = ["FileSource", "HubSource", "metric", "register", "register_mixture"]
