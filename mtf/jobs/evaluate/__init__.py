"""The evaluation job. Only `run.py` imports JAX."""
