"""Runs recipes with T5X by lowering a job's config to a config of T5X's functions.

    lowered = mtf.t5x.lower(recipes.quickstart())  # fdl.Config[t5x.train.train]

`python -m mtf.run RECIPE --engine t5x` lowers and runs a recipe. Importing this package does not
import T5X.
"""

from mtf.t5x.lowering import lower

__all__ = ["lower"]
