"""Trains models; the module `trainer` compiles the steps, and `loop` runs them."""

from mtf.training.settings import (
    AdafactorConfig,
    AdamWConfig,
    EmaConfig,
    ScheduleConfig,
    TrainerConfig,
)

__all__ = ["AdafactorConfig", "AdamWConfig", "EmaConfig", "ScheduleConfig", "TrainerConfig"]
