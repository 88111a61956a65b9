"""The conversion job. Only `run.py` and the modules that it imports read checkpoints."""

from mtf.jobs.convert.settings import Convert

__all__ = ["Convert"]
