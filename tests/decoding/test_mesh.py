"""What is decoded and scored does not depend on the mesh."""

from __future__ import annotations

import json

import pytest

from tests.conftest import with_devices
from tests.small import python


@pytest.mark.slow
def test_a_mesh_decodes_the_tokens_of_one_device() -> None:
    eight = {"XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.decoding.mesh_tokens", **eight)
    alone, on_mesh = json.loads(done.stdout)
    assert len({str(rows) for rows in alone["greedy"]}) > 1
    for one, other in zip(alone.pop("scores"), on_mesh.pop("scores"), strict=True):
        assert other == pytest.approx(one, abs=1e-4)
    assert on_mesh == alone
