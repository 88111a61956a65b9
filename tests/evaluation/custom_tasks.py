"""Custom tasks, imported by `data.module`: one with generated text, and its ranked variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtf.data import tasks


def name_the_colour(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns inputs and targets; every tenth row is left out."""
    if row["n"] % 10 == 0:
        return None
    return {"inputs": f"{row['n']} {row['colour']} {row['animal']}", "targets": row["colour"]}


tasks.register(
    "custom_colour",
    tasks.HubSource("sights"),
    name_the_colour,
    metrics=["accuracy", "mean_3class_f1"],
    answer_choices=["red", "blue", "green"],
)
tasks.register_mixture("custom_mixture", ["custom_colour", "custom_colour_score_eval"])
