"""Metrics, rank evaluation, and decoding during training."""

from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig

__all__ = ["InferEvalConfig", "RankFilesConfig"]
