"""The whole config of every recipe, as `--print all` shows it.

A change of any value, also of a default that a recipe leaves to the framework, shows here.
"""

from __future__ import annotations

import pytest

from tests.recipes.regenerate import GOLDEN, NAMES, flat


@pytest.mark.parametrize("name", NAMES)
def test_config_is_the_golden_one(name: str) -> None:
    golden = (GOLDEN / f"{name}.txt").read_text()
    assert flat(name) == golden, "if it was meant: python -m tests.recipes.regenerate"


def test_there_is_no_golden_config_without_a_recipe() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(NAMES)
