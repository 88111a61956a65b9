"""Steps are counted from the checkpoint that a run starts from, whatever its form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.training.trainer import starting_state
from recipes import fiddlers

# Recipe → its updates after the start.
STEPS: list[tuple[Callable[..., fdl.Config], dict[str, Any], int]] = [
    (recipes.t5_1_1_finetune, {"finetuning_steps": 4}, 4),
    (recipes.t0_3b, {}, 12_200),
    (recipes.mt0_small, {}, 125_000),
    (recipes.mt0_xxl_xmtf, {}, 30_000),
    (recipes.mt5_lm_adapt, {"size": "small"}, 100_000),
    (recipes.ro_mt5_base, {"files": "ro.txt"}, 1_000_000),
    (recipes.ro_mt5_large, {"files": "ro.txt"}, 500_000),
]


@pytest.fixture
def starts(tmp_path: Path) -> dict[str, int]:
    """Directories of every form, and the step that each is at."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    (tmp_path / "run" / "checkpoints" / "checkpoint_20").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "checkpoint_100").mkdir()
    (tmp_path / "checkpoint_1234567").mkdir()
    (tmp_path / "mesh").mkdir()
    for step in (300, 1_000_700):
        (tmp_path / "mesh" / f"model.ckpt-{step}.index").write_bytes(b"")
    (tmp_path / "mesh" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-300"\n')
    return {
        str(tmp_path / "hf"): 0,
        str(tmp_path / "run"): 100,
        str(tmp_path / "run" / "checkpoints"): 100,
        str(tmp_path / "checkpoint_1234567"): 1_234_567,
        str(tmp_path / "not-here" / "checkpoint_77"): 77,
        str(tmp_path / "mesh"): 300,
        str(tmp_path / "mesh" / "model.ckpt-1000700"): 1_000_700,
        "gs://t5-data/pretrained_models/mt5/xxl/model.ckpt-1000000": 1_000_000,
    }


@pytest.mark.parametrize(("recipe", "arguments", "updates"), STEPS)
def test_steps_are_counted_from_the_start(
    recipe: Callable[..., fdl.Config],
    arguments: dict[str, Any],
    updates: int,
    starts: dict[str, int],
) -> None:
    for path, step in starts.items():
        config = recipe(checkpoint=path, **arguments)
        assert config.train_steps == step + updates
        assert config.checkpoint.restore.step == step
        fiddlers.short(config, steps=5)
        assert config.train_steps == step + 5
    released = recipe(**arguments)
    assert released.train_steps == released.checkpoint.restore.step + updates


def test_pretraining_goes_on_at_the_rate_of_its_step(starts: dict[str, int]) -> None:
    """1/√step goes on from the million steps of mT5 where the directory does not count them."""
    for path, step in starts.items():
        for config in (
            recipes.ro_mt5_base(files="ro.txt", checkpoint=path),
            recipes.mt5_lm_adapt("small", checkpoint=path),
        ):
            offset = config.optimizer.learning_rate.__arguments__.get("step_offset", 0)
            assert step - offset == (step or 1_000_000)


class _Restored:
    step = 0


class _Trainer:
    def restore_state(self, path: Path, **_: object) -> _Restored:
        return _Restored()


def test_a_start_of_another_step_is_refused(tmp_path: Path) -> None:
    """As when the path is changed after the recipe has counted."""
    config = recipes.t5_1_1_finetune(finetuning_steps=4)
    config.checkpoint.restore.path = str(tmp_path)
    job = fdl.build(config)
    trainer: Any = _Trainer()
    with pytest.raises(UserError) as caught:
        starting_state(trainer, tmp_path / "run", job.checkpoint.restore, job.train_steps)
    message = str(caught.value)
    assert "checkpoint.restore.step=1000000 is the expected step, but" in message
    assert "is at step 0" in message
    assert "--set checkpoint.restore.step=0 train_steps=4" in message
