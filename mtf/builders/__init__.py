"""Typed functions that compute configs of a job's parts. Imports no jax.

What is not computed is a `fdl.Config` of a settings class.
"""

from mtf.builders import checkpoint, data, model, schedule, vocabulary

__all__ = ["checkpoint", "data", "model", "schedule", "vocabulary"]
