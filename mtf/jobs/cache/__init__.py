"""The job that writes a token cache. Only `run.py` imports NumPy."""
