"""Typed functions that compute configs of a job's parts. Imports no JAX."""

from mtf.builders import checkpoint, data, model, schedule, start, vocabulary

__all__ = ["checkpoint", "data", "model", "schedule", "start", "vocabulary"]
