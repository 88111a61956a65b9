"""The job that writes a token cache. Only `run.py` and `mixture.py` import NumPy."""

from mtf.jobs.cache.settings import Cache

__all__ = ["Cache"]
