"""Train, evaluate and export T5-family encoder-decoder models in JAX."""

__version__ = "0.1.0"
