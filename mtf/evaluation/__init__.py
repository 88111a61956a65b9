"""Evaluates models by ranking answer choices or by scoring generated text."""

from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig

__all__ = ["InferEvalConfig", "RankFilesConfig"]
