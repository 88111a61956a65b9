"""Translated recipes have the values that T5X reads from the same gin files."""

from __future__ import annotations

from pathlib import Path

import fiddle as fdl
import pytest

from mtf.cli.gin import recipe
from mtf.training import AdamWConfig
from tests.gin import comparing
from tests.gin.comparing import Values

pytest.importorskip("gin", reason="gin-config is not installed: pip install 'mtf-jax[gin]'")
DEFAULTS, RUNS = comparing.recorded()
UMT5 = next(name for name in RUNS if "umt5" in name)
ADAMW = next(name for name in RUNS if "adamw" in name)


def translated(theirs: Values, folder: Path) -> fdl.Config:
    """The config of the recipe that is translated from T5X's values."""
    file = folder / "config.gin"
    file.write_text(comparing.gin_text(theirs, DEFAULTS))
    return recipe.translate(recipe.Command((str(file),))).job


def test_all_values_are_those_of_t5x(tmp_path: Path) -> None:
    assert len(RUNS) > 90
    found = {}
    for name, theirs in RUNS.items():
        mine = comparing.ours(translated(theirs, tmp_path), DEFAULTS)
        found[name] = comparing.differences(theirs, mine)
    assert {name: each for name, each in found.items() if each} == {}


def test_differences_are_found(tmp_path: Path) -> None:
    config = translated(RUNS[UMT5], tmp_path)
    config.model.network.relpos_bias_per_layer = False
    mine = comparing.ours(config, DEFAULTS)
    assert {"model.module", comparing.PARAMETERS} <= {*comparing.differences(RUNS[UMT5], mine)}
    config = translated(RUNS[ADAMW], tmp_path)
    config.optimizer = fdl.Config(AdamWConfig, 1e-4, weight_decay_rate=1e-4)
    mine = comparing.ours(config, DEFAULTS)
    assert "model.optimizer_def" in comparing.differences(RUNS[ADAMW], mine)
