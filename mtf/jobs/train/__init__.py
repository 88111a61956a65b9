"""The training job. Only `run.py` imports JAX."""
