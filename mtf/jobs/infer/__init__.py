"""The batch inference job. Only `run.py` imports JAX."""

from mtf.jobs.infer.settings import Infer

__all__ = ["Infer"]
