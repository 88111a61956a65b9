"""Runs a recipe with several values of its settings (`mtf.run --sweep`, or a loop in Python)."""

from mtf.sweep.study import Study, Trial
from mtf.sweep.variants import Variant, variants

__all__ = ["Study", "Trial", "Variant", "variants"]
