"""Translates gin files of T5X and t5_mesh_transformer to recipes."""
