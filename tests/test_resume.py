"""A run that was stopped, or killed, and resumed ends with the bits of one that never stopped."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.cli.run import main
from mtf.models.stacking import stack_layers
from mtf.training.train_state import TrainState
from tests import small

LAST_STEP = 32
SCANNED_ADAFACTOR = {
    "model__network__scan_layers": True,
    "optimizer__min_dim_size_to_factor": 16,  # so that the tiny matrices are factored
}
UNROLLED_ADAMW = {
    "model__network__scan_layers": False,
    "trainer__eval_period": 8,
    "optimizer": "@mtf.training.AdamWConfig("
    "learning_rate=@mtf.builders.schedule.constant(learning_rate=0.003), weight_decay_rate=0.1)",
}


def _saving_often(text: Path, model_dir: str) -> list[str]:
    often = {"checkpoint__save__period": 4, "checkpoint__save__keep": None}
    return small.arguments(
        text, train_steps=LAST_STEP, model_dir=model_dir, **often, **SCANNED_ADAFACTOR
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds text.txt and `whole`, an uninterrupted run that saved every fourth step."""
    folder = tmp_path_factory.mktemp("resume")
    small.run(_saving_often(small.write_text(folder), "whole"), folder)
    return folder


def _check_resumed_in_the_middle(folder: Path, whole: Path, settings: dict[str, Any]) -> None:
    half = folder / "half"
    half_way = LAST_STEP // 2
    text = folder / "text.txt"
    small.run(small.arguments(text, train_steps=half_way, model_dir=half, **settings), folder)
    assert small.steps(half) == [half_way]
    said = small.run(["--from", "half", "--set", f"train_steps={LAST_STEP}"], folder)
    assert small.continued_from(said) == half_way
    small.assert_same_end(half, whole, LAST_STEP)
    lines = small.read_metrics(half)
    assert [line["step"] for line in lines] == list(range(1, LAST_STEP + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2  # It has learnt.


def test_resumed_run_has_the_same_bits_scanned_with_adafactor(folder: Path) -> None:
    _check_resumed_in_the_middle(folder, folder / "whole", SCANNED_ADAFACTOR)


def test_a_new_run_from_a_checkpoint_does_not_say_that_it_resumes(folder: Path) -> None:
    start = folder / "whole" / "checkpoints" / f"checkpoint_{LAST_STEP}"
    restore = "@mtf.checkpoints.settings.RestoreCheckpointConfig"
    settings: dict[str, Any] = {
        **SCANNED_ADAFACTOR,
        "checkpoint__restore": f"{restore}(path={str(start)!r}, mode='specific')",
    }
    text = folder / "text.txt"
    arguments = small.arguments(
        text, train_steps=LAST_STEP + 1, model_dir=folder / "new", **settings
    )
    said = small.run(arguments, folder)
    assert small.continued_from(said) is None
    assert f"\nstarting from {start} at step {LAST_STEP}\n" in said


@pytest.mark.slow
def test_resumed_run_has_the_same_bits_unrolled_with_adamw(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    whole = small.arguments(text, train_steps=LAST_STEP, model_dir="whole", **UNROLLED_ADAMW)
    small.run(whole, tmp_path)
    _check_resumed_in_the_middle(tmp_path, tmp_path / "whole", UNROLLED_ADAMW)


def _numbered_state(number: float) -> TrainState:
    """A state full of a number, large enough to take a while to write."""

    def full(*shape: int) -> jax.Array:
        return jnp.full(shape, number, jnp.float32)

    params = {
        "token_embedder": {"embedding": full(1024, 1024)},
        "encoder": {
            "layers_0": {"kernel": full(512, 1024)},
            "layers_1": {"kernel": full(512, 1024)},
        },
        "decoder": {"layers_0": {"kernel": full(512, 1024)}, "norm": {"scale": full(1024)}},
    }
    slots = jax.tree.map(lambda x: {"v": full(*x.shape)}, params)
    return TrainState(jnp.int32(number), params, slots)


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "unrolled"])
def test_later_steps_do_not_disturb_a_save(tmp_path: Path, stacked: bool) -> None:
    """Each step takes over the memory of the state before, which may still be being written."""
    num_saves, num_steps_between = 4, 25
    state = _numbered_state(0)
    if stacked:
        state = dataclasses.replace(
            state, params=stack_layers(state.params), param_states=stack_layers(state.param_states)
        )
    add_one = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig(period=1))
    num_taken_over = 0
    for step in range(1, num_saves * num_steps_between + 1):
        before, state = state, add_one(state)
        num_taken_over += all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        if step % num_steps_between == 0:
            manager.save(step, state.state_dict(), {"place": step})
    manager.close()
    assert num_taken_over > num_saves * (num_steps_between - 2)  # Else nothing has been tested.
    for step in range(num_steps_between, num_saves * num_steps_between + 1, num_steps_between):
        found = small.read_checkpoint(tmp_path, step)
        leaves = jax.tree_util.tree_leaves_with_path(_numbered_state(step).state_dict())
        expected = {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}
        assert found.keys() == expected.keys()
        wrong = [name for name in expected if found[name][2] != expected[name].tobytes()]
        assert wrong == []
        assert small.read_data_state(tmp_path, step) == {"place": step}


@pytest.mark.slow
def test_killed_during_a_save(folder: Path) -> None:
    run_dir, whole = folder / "killed_in_saves", folder / "whole"
    arguments, complete = _saving_often(folder / "text.txt", run_dir.name), None
    for num_complete in (0, 2):
        with small.start(arguments, folder) as process:
            while len(small.steps(run_dir)) < num_complete or not small.unfinished(run_dir):
                assert process.poll() is None, process.communicate()
                time.sleep(0.0005)
            process.kill()
            out, _ = process.communicate()
        assert small.unfinished(run_dir)
        assert small.continued_from(out) == complete
        arguments, complete = ["--from", run_dir.name], max(small.steps(run_dir), default=None)
    assert small.continued_from(small.run(arguments, folder)) == complete
    small.assert_same_end(run_dir, whole, LAST_STEP)
    assert small.unfinished(run_dir) == []
    # Likewise all that was saved on the way, by whichever process.
    for step in small.steps(run_dir):
        assert small.read_checkpoint(run_dir, step) == small.read_checkpoint(whole, step)


def test_start_that_was_killed_early_can_be_repeated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*small.arguments(folder / "text.txt", model_dir=tmp_path / "run"), "--dry-run"]
    (tmp_path / "run").mkdir()
    for name in ("overrides.txt", "environment.json", ".config.json.123.tmp"):
        shutil.copyfile(
            folder / "whole" / name.replace(".123.tmp", "").lstrip("."), tmp_path / "run" / name
        )
    assert main(arguments) == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert main(arguments) == 2
    assert "is not empty and is not a run directory" in capsys.readouterr().err
