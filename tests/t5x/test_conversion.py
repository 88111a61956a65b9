"""T5X restores the checkpoints that `mtf.convert` writes in its layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import conversion
from mtf.cli.convert import command as convert
from tests.golden import cases, recorded, t5x_engine
from tests.t5x import T5X_MISSING

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed")

LAYOUTS = {"t5x": "zarr", "t5x_orbax": "orbax", "mtf": "orbax"}
STEP = cases.EXCHANGE_STEP


@pytest.fixture(scope="module")
def t5x() -> t5x_engine.Engine:
    return t5x_engine.Engine(cases.CASES["rsqrt"])


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("source", ["zarr", "orbax"])
def test_t5x_restores_parameters_and_slots(
    source: str, to: str, t5x: t5x_engine.Engine, tmp_path: Path
) -> None:
    path = recorded.unpack(f"rsqrt_{source}", tmp_path / "source")
    assert convert.main([str(path), str(tmp_path / "out"), "--to", to]) == 0
    restored = t5x.restore(tmp_path / "out" / f"checkpoint_{STEP}", LAYOUTS[to])
    assert int(restored.step) == STEP
    expected = conversion.open_checkpoint(path).tensors
    found = t5x.flat(restored)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.read(), err_msg=name)


@pytest.mark.parametrize("to", LAYOUTS)
def test_t5x_restores_parameters_alone(to: str, t5x: t5x_engine.Engine, tmp_path: Path) -> None:
    path = recorded.unpack("rsqrt_zarr", tmp_path / "source")
    arguments = [str(path), str(tmp_path / "out"), "--to", to]
    assert convert.main([*arguments, "--optimizer", "drop", "--dtype", "bfloat16"]) == 0
    restored = t5x.restore_for_inference(tmp_path / "out" / f"checkpoint_{STEP}", LAYOUTS[to])
    assert int(restored.step) == STEP
    import jax.numpy as jnp

    expected = conversion.open_checkpoint(path).parameters()
    found = {
        name.removeprefix("target/"): array
        for name, array in t5x.flat(restored).items()
        if name.startswith("target/")
    }
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        rounded = jnp.asarray(tensor.read()).astype(jnp.bfloat16)
        np.testing.assert_array_equal(
            np.asarray(found[name], np.float32), np.asarray(rounded, np.float32), err_msg=name
        )
