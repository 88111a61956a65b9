"""Which checkpoints of a run a setting chooses."""

from __future__ import annotations

from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.checkpoints.steps import select_steps

STEPS = [0, 100, 150, 200, 1000]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("all", STEPS),
        (150, [150]),
        ((1000, 0), [0, 1000]),
        ("100", [100]),
        ("1000, 0,1000", [0, 1000]),
        ("101:999", [150, 200]),
        (":100", [0, 100]),
        (":", STEPS),
        ("100:1000:50", [100, 150, 200, 1000]),
        ("50::100", [150]),
    ],
)
def test_a_choice_selects_existing_steps(choice: Any, expected: list[int]) -> None:
    assert select_steps(choice, reversed(STEPS), "steps") == expected


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (
            (100, 250, 300),
            "^steps: there is no checkpoint of step 250, 300; .* are 0, 100, 150, 20",
        ),
        ("300:900", "there is no checkpoint of step 300:900"),
        (-1, "^steps must be 'all', .* not -1"),
        ("100;200", "^steps must be 'all', 'FIRST:LAST', .* not '100;200'"),
        ("1:2:0", "^steps must be 'all'"),
    ],
)
def test_other_choices_name_the_steps_or_the_forms(choice: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        select_steps(choice, STEPS, "steps")


def test_only_the_last_of_many_steps_are_named() -> None:
    with pytest.raises(UserError, match=r"are 80, 81, .*, 99 and 80 earlier ones\.$"):
        select_steps(100, range(100), "steps")
