"""Loss and gradients depend neither on the mesh nor on the number of microbatches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import with_devices

ROOT = Path(__file__).resolve().parents[2]


ONE, EIGHT = "(1, 1, 1)", "(2, 2, 2)"


def losses(which: str) -> dict[str, list[float]]:
    """From a process of its own, which sees eight CPU devices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.mesh_losses", which],
        env={**os.environ, "XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_mesh_and_microbatches_change_nothing() -> None:
    found = losses("few")
    # Losses of later steps also depend on the gradients and the optimizer's state.
    scanned = found[f"{ONE},1,True,None"]
    assert len(set(scanned)) == 3
    np.testing.assert_allclose(found[f"{EIGHT},1,True,None"], scanned, rtol=1e-5)
    factor = "NUM_REAL_TARGET_TOKENS"
    for mesh in (ONE, EIGHT, "(4, 1, 2)"):
        key = f"{mesh},4,False,{factor}"
        expected = found[f"{ONE},1,False,{factor}"]
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)


@pytest.mark.slow
def test_statistics_of_rows_and_columns_that_are_split_change_nothing() -> None:
    found = losses("optax")
    assert len(set(found[ONE])) == 3
    np.testing.assert_allclose(found[EIGHT], found[ONE], rtol=1e-5)


@pytest.mark.slow
def test_no_mesh_and_no_microbatches_change_anything() -> None:
    found = losses("every")
    expected = found[f"{ONE},1,False,None"]
    meshes = {key: value for key, value in found.items() if key.endswith(",1,False,None")}
    assert len(meshes) == 11  # one device, and the ten meshes of eight
    for key, value in meshes.items():
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=key)
    for factor in ("None", "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        expected = found[f"{ONE},1,False,{factor}"]
        for way in (f"{ONE},2", f"{ONE},4", f"{EIGHT},4"):
            key = f"{way},False,{factor}"
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
