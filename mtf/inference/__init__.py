"""Opens checkpoints, scores and generates text, and runs inference over files."""

from mtf.inference.decoding.settings import DecodingConfig

__all__ = ["DecodingConfig"]
