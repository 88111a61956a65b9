"""The evaluation job. Only `run.py` imports JAX."""

from mtf.jobs.evaluate.settings import Evaluate

__all__ = ["Evaluate"]
