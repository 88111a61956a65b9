"""Checkpoints that T5X wrote: read, continued, and equal to ours. (`rsqrt` after 20 steps.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import conversion
from conversion.tensor import ConversionError
from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.settings import SaveCheckpointConfig
from tests.golden import cases, comparing, engine, recorded

CASE = cases.CASES["rsqrt"]
STEP = cases.EXCHANGE_STEP
LAYOUTS = ("zarr", "orbax")
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """T5X's checkpoint of step 20 in both of its layouts."""
    return {
        layout: recorded.unpack(f"rsqrt_{layout}", tmp_path_factory.mktemp(layout))
        for layout in LAYOUTS
    }


@pytest.fixture(scope="module")
def unrolled() -> engine.Engine:
    return engine.Engine(CASE)


@pytest.fixture(scope="module")
def ours(unrolled: engine.Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our checkpoint of step 20, from the start that T5X had."""
    folder = tmp_path_factory.mktemp("ours")
    state, _ = unrolled.train(unrolled.start(), cases.batches(packed=False)[:STEP])
    manager = CheckpointManager(folder, SaveCheckpointConfig())
    manager.save(STEP, state.state_dict(), {})
    manager.close()
    return folder / "checkpoints" / f"checkpoint_{STEP}"


def read(path: Path) -> Arrays:
    return {name: x.read() for name, x in conversion.open_checkpoint(path).tensors.items()}


def test_both_layouts_hold_the_same_tensors(theirs: dict[str, Path]) -> None:
    checkpoints = [conversion.open_checkpoint(theirs[layout].parent) for layout in LAYOUTS]
    assert [x.layout for x in checkpoints] == ["t5x-zarr", "orbax"]
    assert [x.step for x in checkpoints] == [STEP, STEP]
    zarr, orbax = (read(theirs[layout]) for layout in LAYOUTS)
    assert len(zarr) == 261  # 52 parameters, each with m, v, v_col, v_row; and the step
    assert zarr.keys() == orbax.keys()
    assert zarr["state/step"] == STEP
    for name, array in zarr.items():
        np.testing.assert_array_equal(array, orbax[name], err_msg=name)


def test_factored_slots(theirs: dict[str, Path]) -> None:
    tensors = read(theirs["zarr"])
    slot = "state/param_states/token_embedder/embedding"
    assert tensors[f"{slot}/v_row"].shape == (32,)
    assert tensors[f"{slot}/v_col"].shape == (384,)
    assert tensors[f"{slot}/v"].tolist() == [0.0]


def test_our_checkpoint_is_theirs(ours: Path, theirs: dict[str, Path]) -> None:
    found, expected = read(ours), read(theirs["orbax"])
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        # Second moments have the scale of squared gradients, so the largest is the measure.
        scale = 1.0 if name.startswith("target") else np.abs(array).max()
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize(
    ("layout", "scan_layers"),
    [
        ("zarr", False),
        ("orbax", True),
        pytest.param("zarr", True, marks=pytest.mark.slow),
        pytest.param("orbax", False, marks=pytest.mark.slow),
    ],
)
def test_we_continue_their_checkpoint(
    layout: str, scan_layers: bool, theirs: dict[str, Path], unrolled: engine.Engine
) -> None:
    ours = engine.Engine(CASE, scan_layers=True) if scan_layers else unrolled
    state = ours.trainer.restore_state(theirs[layout])
    assert state.step == STEP
    state, losses = ours.train(state, cases.batches(packed=False)[STEP:])
    expected = recorded.read("rsqrt")
    comparing.assert_losses(CASE, losses, expected["losses"]["1"][STEP:])
    comparing.assert_metrics(CASE, ours.evaluate(state), expected["eval"])
    comparing.assert_state(CASE, recorded.summary(engine.flat(state)), expected["state"])


def test_their_scanned_checkpoint_has_a_tensor_for_each_layer(
    theirs: dict[str, Path], tmp_path: Path
) -> None:
    scanned = conversion.open_checkpoint(recorded.unpack("scanned_zarr", tmp_path / "scanned"))
    shapes = {name: x.shape for name, x in scanned.tensors.items()}
    bias = "target/encoder/layers_{}/relpos_bias/rel_embedding"
    assert shapes[bias.format(0)] == shapes[bias.format(1)] == (4, 32)
    unrolled = {
        name: x.shape for name, x in conversion.open_checkpoint(theirs["zarr"]).parameters().items()
    }
    parameters = {name: x.shape for name, x in scanned.parameters().items()}
    assert {k: v for k, v in parameters.items() if "relpos" not in k} == {
        k: v for k, v in unrolled.items() if "relpos" not in k
    }
    assert conversion.infer_architecture(scanned).relpos_bias_per_layer


@pytest.mark.parametrize("complete", [True, False])
def test_files_that_tensorflow_wrote(complete: bool, tmp_path: Path) -> None:
    path = recorded.unpack("mesh_tf", tmp_path / "mesh_tf")
    if not complete:  # Often copied without the file that names the latest step.
        (path / "checkpoint").unlink()
    checkpoint = conversion.open_checkpoint(path)
    assert (checkpoint.layout, checkpoint.step) == ("mesh-tensorflow", STEP)
    tensors = {name: x.read() for name, x in checkpoint.tensors.items()}
    assert tensors.keys() == {
        "state/step",
        "target/encoder/layers_0/pre_attention_layer_norm/scale",
    }
    assert tensors["state/step"] == STEP
    assert tensors["state/step"].dtype == np.int32
    np.testing.assert_array_equal(
        tensors["target/encoder/layers_0/pre_attention_layer_norm/scale"], np.ones(32, np.float32)
    )
    with pytest.raises(ConversionError, match="has no parameter target/token_embedder/embedding"):
        conversion.infer_architecture(checkpoint)
