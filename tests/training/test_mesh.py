"""Loss and gradients depend neither on the mesh nor on the number of microbatches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.conftest import with_devices
from tests.small import python

ONE, EIGHT = "(1, 1, 1)", "(2, 2, 2)"


@pytest.mark.slow
def test_no_mesh_and_no_microbatches_change_anything() -> None:
    eight = {"XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.training.mesh_losses", **eight)
    found = json.loads(done.stdout)
    # Losses of later steps also depend on the gradients and the optimizer's state.
    scanned = found[f"{ONE},1,True,None"]
    assert len(set(scanned)) == 3
    np.testing.assert_allclose(found[f"{EIGHT},1,True,None"], scanned, rtol=1e-5)
    expected = found[f"{ONE},1,False,None"]
    others = [key for key in found if key.endswith(",1,False,None")]
    assert len(others) == 11  # one device, and the ten meshes of eight
    for key in [*others, "(4, 1, 2),4,False,None"]:
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
    for factor in ("None", "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        expected = found[f"{ONE},1,False,{factor}"]
        for way in (f"{ONE},2", f"{ONE},4", f"{EIGHT},4"):
            key = f"{way},False,{factor}"
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
