"""Trackers of experiments, beside TensorBoard's event files and `metrics.jsonl`."""

from mtf.run_end import RunEnd
from mtf.trackers.tracker import Sample, TrackedRun, Tracker

__all__ = ["RunEnd", "Sample", "TrackedRun", "Tracker"]
