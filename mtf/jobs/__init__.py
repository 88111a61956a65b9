"""The jobs that recipes return: frozen dataclasses with a method `run`."""

from mtf.jobs.cache import Cache
from mtf.jobs.convert import Convert
from mtf.jobs.evaluate import Evaluate
from mtf.jobs.infer import Infer
from mtf.jobs.results import EvaluateResult, InferResult, TrainResult
from mtf.jobs.train import Train

__all__ = [
    "Cache",
    "Convert",
    "Evaluate",
    "EvaluateResult",
    "Infer",
    "InferResult",
    "Train",
    "TrainResult",
]
