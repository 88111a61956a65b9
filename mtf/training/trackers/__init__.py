"""Experiment trackers, which a run can use in addition to TensorBoard and `metrics.jsonl`."""

from mtf.base.run_end import RunEnd
from mtf.training.trackers.libraries import MLflow, Wandb
from mtf.training.trackers.tracker import Sample, TrackedRun, Tracker

__all__ = ["MLflow", "RunEnd", "Sample", "TrackedRun", "Tracker", "Wandb"]
