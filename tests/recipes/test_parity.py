"""Every recipe against its golden config and its original, and the page that shows the tables."""

from __future__ import annotations

import functools
from typing import Any

import fiddle as fdl
import pytest

from mtf import config as config_lib
from mtf.config.paths import parse_path
from tests.recipes import parity
from tests.recipes.regenerate import GOLDEN, NAMES, PAGE, flat, page

ROWS = [
    pytest.param(name, row, id=f"{name}-{row.setting}-{row.path}")
    for rows in parity.TABLES.values()
    for row in rows
    for name in row.recipes
]

WITHOUT_ORIGINAL = {"evaluate", "infer", "mt0_eval", "pretrain_text", "quickstart", "t0_eval"}

# What an original always says, in the paths of our configs.
SAID_OF_TRAINING = {
    "batch_size",
    "data.task_feature_lengths.inputs",
    "data.task_feature_lengths.targets",
    "data.vocabulary.path",
    "model.network.dropout_rate",
    "model.network.vocab_size",
    "optimizer",
    "optimizer.learning_rate.base_learning_rate",
    "optimizer.learning_rate.factors",
    "partitioner.num_partitions",
    "train_steps",
}


@functools.cache
def config_of(name: str) -> fdl.Config:
    return config_lib.complete(config_lib.resolve(f"recipes.{name}"))


def value_at(config: Any, path: str) -> Any:
    """The value at a path; of a component, the name of what it builds."""
    if path.startswith("data.subsets."):  # Keys such as `en-multi` are no Python names.
        return config.data.subsets[path.removeprefix("data.subsets.")]
    for step in parse_path(path):
        config = getattr(config, step) if isinstance(config, fdl.Buildable) else config[step]
    if not isinstance(config, fdl.Buildable):
        return config
    return fdl.get_callable(config).__name__


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_recipe_has_the_originals_value_or_says_why_not(name: str, row: parity.Row) -> None:
    found = value_at(config_of(name), row.path)
    assert found == row.expected and type(found) is type(row.expected)
    if not (row.derived or row.deviation):
        assert row.expected == row.original


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_ORIGINAL))
def test_whatever_an_original_says_of_training_is_in_its_table(name: str) -> None:
    said = {row.path for rows in parity.TABLES.values() for row in rows if name in row.recipes}
    assert said >= SAID_OF_TRAINING
    assert "checkpoint.restore" in said or "checkpoint.restore.path" in said


def test_the_page_shows_these_tables() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run python -m tests.recipes.regenerate"


@pytest.mark.parametrize("name", NAMES)
def test_config_is_the_golden_one(name: str) -> None:
    golden = (GOLDEN / f"{name}.txt").read_text()
    assert flat(name) == golden, "if it was meant: python -m tests.recipes.regenerate"


def test_there_is_no_golden_config_without_a_recipe() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(NAMES)
