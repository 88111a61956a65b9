"""Numbers of schedules, optimizers and jobs that cannot be meant are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.models.settings import ModelConfig
from mtf.training.settings import AdafactorConfig, AdamWConfig, EmaConfig, ScheduleConfig

INFINITE = float("inf")


def adafactor(**fields: Any) -> AdafactorConfig:
    return AdafactorConfig(ScheduleConfig(), **fields)


def adamw(**fields: Any) -> AdamWConfig:
    return AdamWConfig(ScheduleConfig(), **fields)


def model(**fields: Any) -> ModelConfig:
    return ModelConfig(fdl.build(recipes.quickstart()).model.network, **fields)


def job(**fields: Any) -> Any:
    config = recipes.quickstart()
    for name, value in fields.items():
        setattr(config, name, value)
    return fdl.build(config)


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (ScheduleConfig, "base_learning_rate", float("nan")),
        (ScheduleConfig, "base_learning_rate", INFINITE),
        (ScheduleConfig, "min_learning_rate", -1e-8),
        (ScheduleConfig, "decay_factor", -0.5),
        (ScheduleConfig, "warmup_steps", 2**31),
        (ScheduleConfig, "step_offset", -1),
        (ScheduleConfig, "steps_per_decay", 2**31),
        (ScheduleConfig, "steps_per_cycle", 0),
        (adafactor, "epsilon1", 0.0),
        (adafactor, "epsilon2", -1e-3),
        (adafactor, "weight_decay_rate", -0.1),
        (adafactor, "weight_decay_rate_lr_exponent", -1.0),
        (adafactor, "step_offset", -1),
        (adafactor, "min_dim_size_to_factor", 0),
        (adafactor, "clipping_threshold", INFINITE),
        (adafactor, "logical_factor_rules", (("embed", "ROWS"),)),
        (adafactor, "logical_factor_rules", (("embed", "ROW"), ("embed", "COLUMN"))),
        (adamw, "epsilon", 0.0),
        (adamw, "weight_decay_rate", -0.1),
        (adamw, "global_norm_clip_threshold", -1.0),
        (job, "random_seed", 2**32),
        (job, "random_seed", -1),
        (job, "train_steps", 2**31),
        (model, "z_loss", INFINITE),
        (EmaConfig, "decay", 1.0),
    ],
)
def test_refused_by_name(make: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"{field}\b"):
        make(**{field: value})


def test_the_limits_themselves_are_taken() -> None:
    ScheduleConfig(base_learning_rate=0.0, min_learning_rate=0.0, step_offset=2**31 - 1)
    adafactor(epsilon2=0.0, weight_decay_rate=0.0, step_offset=0)
    job(random_seed=2**32 - 1, train_steps=2**31 - 1)
