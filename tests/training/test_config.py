"""Schedules of the learning rate, and numbers that cannot be meant, refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.models.settings import ModelConfig
from mtf.training.schedules import learning_rate
from mtf.training.settings import AdafactorConfig, AdamWConfig, EmaConfig, ScheduleConfig

INFINITE = float("inf")


def adafactor(**fields: Any) -> AdafactorConfig:
    return AdafactorConfig(ScheduleConfig(), **fields)


def adamw(**fields: Any) -> AdamWConfig:
    return AdamWConfig(ScheduleConfig(), **fields)


def model(**fields: Any) -> ModelConfig:
    return ModelConfig(fdl.build(recipes.pretrain_text()).model.network, **fields)


def job(**fields: Any) -> Any:
    config = recipes.pretrain_text()
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


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (ScheduleConfig("constant", 1e-3), 0, 1e-3),
        (ScheduleConfig("constant * rsqrt_decay", 1.0, 10_000), 0, 0.01),
        (ScheduleConfig("constant * rsqrt_decay", 1.0, 10_000), 10_000, 0.01),
        (ScheduleConfig("constant * rsqrt_decay", 1.0, 10_000), 1_000_000, 0.001),
        # The schedule sees the step before its update: a warm-up starts at the floor.
        (ScheduleConfig("constant * linear_warmup * rsqrt_decay", 0.5, 1000), 0, 1e-8),
        (
            ScheduleConfig("constant * linear_warmup * rsqrt_decay", 0.5, 1000),
            500,
            0.25 / math.sqrt(1000),
        ),
        (ScheduleConfig("constant * rsqrt_normalized_decay", 0.1, 100), 400, 0.05),
        (ScheduleConfig("linear_decay", 0.1, 100, decay_factor=0.001), 50, 0.05),
        (ScheduleConfig("linear_decay", 0.1, 100, decay_factor=0.001), 600, 0.05),
        (
            ScheduleConfig("constant * decay_every", 0.8, decay_factor=0.5, steps_per_decay=10),
            25,
            0.2,
        ),
        (ScheduleConfig("constant * cosine_decay", 0.2, 100, steps_per_cycle=100), 150, 0.1),
        (ScheduleConfig("constant * linear_warmup", 0.2, 100, step_offset=1000), 1050, 0.1),
        (ScheduleConfig("constant * linear_warmup", 0.2, 100, step_offset=1000), 10, 1e-8),
    ],
)
def test_learning_rate(schedule: ScheduleConfig, step: int, expected: float) -> None:
    assert float(learning_rate(schedule, step)) == pytest.approx(expected, rel=1e-5)


def test_unknown_factor_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'rsqrt_decy'.*Did you mean rsqrt_decay"):
        ScheduleConfig("constant * rsqrt_decy")
