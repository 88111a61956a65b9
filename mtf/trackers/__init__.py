"""Trackers of experiments, beside TensorBoard's event files and `metrics.jsonl`."""

from mtf.run_end import RunEnd
from mtf.trackers.comet import Comet
from mtf.trackers.mlflow import MLflow
from mtf.trackers.tracker import Sample, TrackedRun, Tracker
from mtf.trackers.wandb import Wandb

__all__ = ["Comet", "MLflow", "RunEnd", "Sample", "TrackedRun", "Tracker", "Wandb"]
