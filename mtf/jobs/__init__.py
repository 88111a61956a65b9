"""The jobs that recipes return: frozen dataclasses with a method `run`."""

from mtf.jobs.evaluate import Evaluate
from mtf.jobs.infer import Infer
from mtf.jobs.results import EvaluateResult, InferResult, TrainResult
from mtf.jobs.train import Train

__all__ = ["Evaluate", "EvaluateResult", "Infer", "InferResult", "Train", "TrainResult"]
