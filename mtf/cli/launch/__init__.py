"""Implements `python -m mtf launch`, which starts the processes of a run."""
