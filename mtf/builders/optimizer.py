"""Optimizers."""

from __future__ import annotations

import fiddle as fdl

from mtf.training.config import Adafactor, AdamW, Schedule


def adafactor(
    learning_rate: fdl.Config[Schedule], *, weight_decay_rate: float | None = None
) -> fdl.Config[Adafactor]:
    """Adafactor with T5X's settings."""
    return fdl.Config(Adafactor, learning_rate=learning_rate, weight_decay_rate=weight_decay_rate)


def adamw(
    learning_rate: fdl.Config[Schedule],
    *,
    weight_decay_rate: float = 0.0,
    global_norm_clip_threshold: float | None = None,
) -> fdl.Config[AdamW]:
    """AdamW."""
    return fdl.Config(
        AdamW,
        learning_rate=learning_rate,
        weight_decay_rate=weight_decay_rate,
        global_norm_clip_threshold=global_norm_clip_threshold,
    )
