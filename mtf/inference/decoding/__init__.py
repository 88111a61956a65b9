"""Greedy decoding, sampling and beam search."""

from mtf.base.lazy import submodules

__getattr__ = submodules(__name__, "generate")
