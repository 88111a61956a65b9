"""Runs a recipe with different values of its settings (`mtf.run --sweep`)."""
