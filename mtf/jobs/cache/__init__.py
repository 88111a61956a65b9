"""The job that writes a token cache. Only `run.py` and `mixture.py` import NumPy."""
