"""Opens checkpoints, scores and generates text, and runs inference over files."""

from mtf.base.lazy import submodules
from mtf.inference.decoding.settings import DecodingConfig

__getattr__ = submodules(__name__, "api")
__all__ = ["DecodingConfig"]
