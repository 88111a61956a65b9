"""The T5 network."""

from mtf.models.settings import LoraConfig, ModelConfig, T5Config

__all__ = ["LoraConfig", "ModelConfig", "T5Config"]
