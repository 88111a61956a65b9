"""Typed functions that return Fiddle configs of a job's parts. Imports no jax."""

from mtf.builders import (
    checkpoint,
    data,
    job,
    model,
    optimizer,
    partitioner,
    schedule,
    trainer,
    vocabulary,
)

__all__ = [
    "checkpoint",
    "data",
    "job",
    "model",
    "optimizer",
    "partitioner",
    "schedule",
    "trainer",
    "vocabulary",
]
