"""What is decoded does not depend on the mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import with_devices

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("which", "number"), [("few", 2), pytest.param("every", 5, marks=pytest.mark.slow)]
)
def test_meshes_decode_the_tokens_of_one_device(which: str, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.decoding.mesh_tokens", which],
        env={**os.environ, "XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == number
    alone = found.pop("(1, 1, 1)")
    assert len({str(rows) for rows in alone["greedy"]}) > 1
    for mesh, tokens in found.items():
        assert tokens == alone, mesh
