"""The token cache, which stores rendered and tokenized tasks for random access."""

from mtf.base.lazy import submodules

__getattr__ = submodules(__name__, "mixture")
