"""Implements `python -m mtf.convert`, which converts, inspects and compares checkpoints."""
