"""The T5 network."""

from mtf.models.settings import ModelConfig, T5Config

__all__ = ["ModelConfig", "T5Config"]
