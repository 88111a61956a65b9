"""The jobs that recipes return: frozen dataclasses with a method `run`."""

from mtf.jobs.cache.settings import Cache
from mtf.jobs.convert.settings import Convert
from mtf.jobs.evaluate.settings import Evaluate
from mtf.jobs.infer.settings import Infer
from mtf.jobs.results import EvaluateResult, InferResult, TrainResult
from mtf.jobs.train.settings import Train

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
