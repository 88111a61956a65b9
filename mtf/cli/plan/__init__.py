"""Implements `python -m mtf plan`, which compiles a recipe for any devices, available or not."""
