"""A user's file, which `.ci/run` checks with mypy against the installed wheel.

The ignored line is an error for mypy only if it knows mtf's types; otherwise, the comment is one.
"""

from __future__ import annotations

import mtf
from mtf.jobs import Train, TrainResult

model = mtf.load("RUN", dtype="bfloat16")
translations: list[str] = model.generate(["one", "two"], method="beam")
best: int = model.rank("Is the sky blue?", ["no", "yes"]).best
wrong: int = model.generate("one")  # type: ignore[assignment]


def accuracy(job: Train) -> float:
    """Returns the accuracy on held-out data after a training run."""
    result: TrainResult = job.run()
    return result.metrics["training_eval/held_out/accuracy"]
