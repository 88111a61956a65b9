"""Typed functions that return configs for the parts of a job. Does not import JAX."""

from mtf.builders import checkpoint, data, model, schedule, start, vocabulary

__all__ = ["checkpoint", "data", "model", "schedule", "start", "vocabulary"]
