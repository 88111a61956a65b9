"""The batch inference job. Only `run.py` imports JAX."""
