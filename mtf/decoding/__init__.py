"""Greedy decoding, sampling and beam search."""

from mtf.decoding.settings import DecodingConfig

__all__ = ["DecodingConfig"]
