"""Recipes: typed functions that return the config of a job, one file per family."""

from recipes.start import quickstart

__all__ = ["quickstart"]
