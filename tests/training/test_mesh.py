"""Loss and gradients depend neither on the mesh nor on the number of microbatches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def losses() -> dict[str, list[float]]:
    """From a process of its own, which sees eight CPU devices."""
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.mesh_losses"],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_every_mesh_gives_the_losses_of_one_device(losses: dict[str, list[float]]) -> None:
    unrolled = {key: value for key, value in losses.items() if key.endswith(",1,False")}
    assert len(unrolled) == 11  # one device, and the ten meshes of eight
    # Losses of later steps also depend on the gradients and the optimizer's state.
    assert len(set(losses["(1, 1, 1),1,False"])) == 3
    for key, value in unrolled.items():
        np.testing.assert_allclose(value, losses["(1, 1, 1),1,False"], rtol=1e-5, err_msg=key)
    scanned = losses["(1, 1, 1),1,True"]
    np.testing.assert_allclose(losses["(2, 2, 2),1,True"], scanned, rtol=1e-5)


@pytest.mark.parametrize("factor", ["None", "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"])
def test_microbatches_change_nothing(losses: dict[str, list[float]], factor: str) -> None:
    expected = losses[f"(1, 1, 1),1,{factor}"]
    for key in (f"(1, 1, 1),2,{factor}", f"(1, 1, 1),4,{factor}", f"(2, 2, 2),4,{factor}"):
        np.testing.assert_allclose(losses[key], expected, rtol=1e-5, err_msg=key)
