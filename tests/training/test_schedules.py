"""Learning rates against hand-computed values of T5X's factors."""

from __future__ import annotations

import math

import pytest

from mtf.base.errors import UserError
from mtf.training.schedules import learning_rate
from mtf.training.settings import ScheduleConfig


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
