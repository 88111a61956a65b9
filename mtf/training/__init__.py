"""Training: `trainer` has a step, `loop` runs them."""

from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig, TrainerConfig

__all__ = ["AdafactorConfig", "AdamWConfig", "ScheduleConfig", "TrainerConfig"]
