"""The training job. Only `run.py` imports JAX."""

from mtf.jobs.train.settings import Train

__all__ = ["Train"]
