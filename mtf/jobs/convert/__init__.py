"""The conversion job. Only `run.py` and the modules that it imports read checkpoints."""
