"""A user's file, which `.ci/run` checks with mypy against the installed wheel.

The ignored line with `wrong` is an error for mypy only if it knows mtf's types; otherwise, the
comment is one. Fiddle has no types.
"""

from __future__ import annotations

import fiddle as fdl  # type: ignore[import-untyped]

import mtf
import recipes
from mtf.data.tasks import FileSource, register, register_mixture
from mtf.jobs import Train, TrainResult

model = mtf.load("RUN", dtype="bfloat16")
translations: list[str] = model.generate(["one", "two"], method="beam")
best: int = model.rank("Is the sky blue?", ["no", "yes"]).best
wrong: int = model.generate("one")  # type: ignore[assignment]


def question(row: dict[str, str]) -> dict[str, str]:
    """Returns the texts of a record."""
    return {"inputs": row["question"], "targets": row["answer"]}


def questions(row: dict[str, str]) -> list[dict[str, str]] | None:
    """Returns the texts of a record, or None to drop it."""
    return [question(row)] if row["answer"] else None


register("questions", FileSource({"train": "a.jsonl"}), question, metrics=["accuracy"])
register("answered", FileSource({"train": "a.jsonl"}), questions)
register_mixture("all_questions", {"questions": 1, "answered": None})


def recipe(steps: int = 10) -> fdl.Config[Train]:
    """Returns a config that differs from that of the quickstart."""
    config = recipes.quickstart()
    config.train_steps = steps
    config.model = mtf.builders.model.t5_1_1("small")
    config.optimizer = fdl.Config(mtf.training.AdamWConfig, learning_rate=1e-3)
    return config


def accuracy(job: Train) -> float:
    """Returns the accuracy on held-out data after a training run."""
    result: TrainResult = job.run()
    return result.metrics["training_eval/held_out/accuracy"]
