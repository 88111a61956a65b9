"""Metrics, rank evaluation, and evaluation of decoded text during training."""

from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig

__all__ = ["InferEvalConfig", "RankFilesConfig"]
