"""Train, evaluate and export T5-family encoder-decoder models in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtf import siblings

if TYPE_CHECKING:
    from mtf.inference.api import load as load

__all__ = ["load"]
__version__ = "0.1.0"

siblings.install()


def __getattr__(name: str) -> object:
    """Imports `mtf.load` at first use, because it needs JAX."""
    if name == "load":
        from mtf.inference.api import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
