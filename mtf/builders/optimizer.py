"""Optimizers."""

from __future__ import annotations

import fiddle as fdl

from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig


def adafactor(
    learning_rate: fdl.Config[ScheduleConfig], *, weight_decay_rate: float | None = None
) -> fdl.Config[AdafactorConfig]:
    """Adafactor with T5X's settings."""
    return fdl.Config(
        AdafactorConfig, learning_rate=learning_rate, weight_decay_rate=weight_decay_rate
    )


def adamw(
    learning_rate: fdl.Config[ScheduleConfig],
    *,
    weight_decay_rate: float = 0.0,
    global_norm_clip_threshold: float | None = None,
) -> fdl.Config[AdamWConfig]:
    """AdamW."""
    return fdl.Config(
        AdamWConfig,
        learning_rate=learning_rate,
        weight_decay_rate=weight_decay_rate,
        global_norm_clip_threshold=global_norm_clip_threshold,
    )
