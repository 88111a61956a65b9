"""Starting from checkpoints of every layout, in every mode."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import conversion
from mtf.base.errors import UserError
from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.restore import checkpoint_path
from mtf.checkpoints.settings import RestoreCheckpointConfig, SaveCheckpointConfig
from mtf.checkpoints.steps import select_steps
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig
from mtf.training.trainer import Trainer
from tests import made_up
from tests.golden.engine import flat

SMALL = made_up.network(num_encoder_layers=2, dropout_rate=0.1)


def make_trainer(
    network: T5Config = SMALL, optimizer: AdafactorConfig | AdamWConfig | None = None, seed: int = 0
) -> Trainer:
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    optimizer = optimizer or AdafactorConfig(ScheduleConfig(), min_dim_size_to_factor=8)
    return Trainer(ModelConfig(network), optimizer, partitioner, random_seed=seed)


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A run directory with steps 0 and 7 (the same state but for the step), and that state."""
    run_dir = tmp_path_factory.mktemp("run")
    trainer = make_trainer(seed=1)
    state = trainer.init_state()
    manager = CheckpointManager(run_dir, SaveCheckpointConfig())
    manager.save(0, state.state_dict(), {"place": 0})
    seven = dataclasses.replace(state, step=state.step + 7)
    manager.save(7, seven.state_dict(), {"place": 7})
    manager.close()
    return run_dir, flat(seven)


def test_own_checkpoints_come_back_whole_scanned_or_not(
    saved: tuple[Path, dict[str, np.ndarray]],
) -> None:
    run_dir, expected = saved
    for scan_layers in (False, True):
        trainer = make_trainer(dataclasses.replace(SMALL, scan_layers=scan_layers))
        assert_same(flat(trainer.restore_state(run_dir)), expected)


@pytest.mark.slow
def test_a_scanned_run_saves_what_an_unrolled_one_does(tmp_path: Path) -> None:
    saved = []
    for scan_layers in (False, True):
        trainer = make_trainer(dataclasses.replace(SMALL, scan_layers=scan_layers))
        run_dir = tmp_path / str(scan_layers)
        manager = CheckpointManager(run_dir, SaveCheckpointConfig())
        manager.save(0, trainer.init_state().state_dict(), {})
        manager.close()
        tensors = conversion.open_checkpoint(run_dir).tensors
        saved.append({name: tensor.read() for name, tensor in tensors.items()})
    assert_same(*saved)


def test_the_save_dtype_is_that_of_the_parameters_on_disk(tmp_path: Path) -> None:
    trainer = make_trainer()
    state = trainer.init_state()
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig(dtype="bfloat16"))
    manager.save(0, state.state_dict(), {})
    manager.close()
    tensors = conversion.open_checkpoint(tmp_path).tensors
    for name, tensor in tensors.items():
        if name.startswith("target/"):
            assert tensor.dtype == ml_dtypes.bfloat16, name
        elif name != "state/step":
            assert tensor.dtype == np.float32, name
    kernel = "target/encoder/layers_0/mlp/wo/kernel"
    expected = flat(state)[kernel].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(tensors[kernel].read(), expected)
    assert flat(trainer.restore_state(tmp_path))[kernel].dtype == np.float32


def test_modes(saved: tuple[Path, dict[str, np.ndarray]]) -> None:
    run_dir, _ = saved
    folder = run_dir / "checkpoints"

    def found(path: Path, mode: Any) -> str:
        return checkpoint_path(RestoreCheckpointConfig(str(path), mode)).name

    assert found(folder, "latest") == found(run_dir, "latest") == "checkpoint_7"
    assert found(folder / "checkpoint_0", "specific") == "checkpoint_0"
    with pytest.raises(UserError, match=r"does not exist\. Did you mean checkpoints\?"):
        found(run_dir / "checkpoint", "latest")
    with pytest.raises(UserError, match="contains no complete checkpoint"):
        found(folder / "checkpoint_7" / "data", "latest")


def test_missing_tensors_are_refused_or_started_from_scratch(
    saved: tuple[Path, dict[str, np.ndarray]],
) -> None:
    run_dir, theirs = saved
    trainer = make_trainer(optimizer=AdamWConfig(ScheduleConfig()), seed=9)
    with pytest.raises(UserError, match="has the state of another optimizer"):
        trainer.restore_state(run_dir)
    ours = flat(trainer.restore_state(run_dir, fallback_to_scratch=True))
    name = "token_embedder/embedding"
    np.testing.assert_array_equal(ours[f"target/{name}"], theirs[f"target/{name}"])
    assert not ours[f"state/param_states/{name}/mu"].any()
    assert ours["state/step"] == 7


def test_other_shapes_are_refused_with_tensor_and_both_shapes(
    saved: tuple[Path, dict[str, np.ndarray]],
) -> None:
    run_dir, _ = saved
    trainer = make_trainer(dataclasses.replace(SMALL, mlp_dim=16))
    with pytest.raises(UserError) as error:
        trainer.restore_state(run_dir, fallback_to_scratch=True)
    name = "target/decoder/layers_0/mlp/wi_0/kernel"
    text = f"{name}: has shape (8, 12) in the checkpoint, but (8, 16) in the model"
    assert text in str(error.value)


@pytest.fixture(scope="module")
def deeper() -> list[tuple[Trainer, dict[str, np.ndarray]]]:
    """Trainers, unrolled and scanned, with a layer more than `saved`; and their fresh states."""
    network = dataclasses.replace(SMALL, num_decoder_layers=2)
    trainers = [
        make_trainer(dataclasses.replace(network, scan_layers=scan_layers), seed=9)
        for scan_layers in (False, True)
    ]
    return [(trainer, flat(trainer.init_state())) for trainer in trainers]


ANEW = "/decoder/layers_1/"  # The checkpoint has no such layer.


@pytest.mark.parametrize(
    ("options", "anew"),
    [
        ({"fallback_to_scratch": True}, ANEW),
        ({"assignment_map": ((f".*{ANEW}.*", None),)}, ANEW),
        (
            {
                "assignment_map": (
                    (r"(.*)/decoder/layers_1/(.*)", r"\1/decoder/layers_0/\2"),
                    (r".*/encoder/layers_1/.*", None),
                    (r"state/step", None),
                )
            },
            "/encoder/layers_1/|state/step",
        ),
    ],
    ids=["fallback", "a layer that it lacks", "a layer that it has"],
)
def test_a_part_is_restored_alike_scanned_or_not(
    saved: tuple[Path, dict[str, np.ndarray]],
    deeper: list[tuple[Trainer, dict[str, np.ndarray]]],
    options: Any,
    anew: str,
) -> None:
    run_dir, theirs = saved
    restored = []
    for trainer, fresh in deeper:
        restored.append(flat(trainer.restore_state(run_dir, **options)))
        for name, value in restored[-1].items():
            there = name if name in theirs else name.replace("layers_1", "layers_0")
            expected = fresh[name] if re.search(anew, name) else theirs[there]
            np.testing.assert_array_equal(value, expected, err_msg=name)
    assert_same(*restored)


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("decoder/layers_0/.*", ".*/decoder/layers_0/.*"), (".*layers_7/.*", None)],
)
def test_a_pattern_that_matches_nothing_is_refused(
    saved: tuple[Path, dict[str, np.ndarray]], pattern: str, near: str | None
) -> None:
    with pytest.raises(UserError, match="no tensor of this model matches") as error:
        make_trainer().restore_state(saved[0], assignment_map=((pattern, None), ("state/.*", None)))
    assert repr(pattern) in str(error.value) and "'state/.*'" not in str(error.value)
    assert (f"Did you mean {near!r}?" in str(error.value)) == (near is not None)


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
