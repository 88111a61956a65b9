"""Evaluates models by ranking answer choices or by scoring generated text."""

from mtf.base.lazy import submodules
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig

__getattr__ = submodules(__name__, "metrics", "seqio_registry")
__all__ = ["InferEvalConfig", "RankFilesConfig"]
