"""What is decoded does not depend on the mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_mesh_decodes_the_tokens_of_one_device() -> None:
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.decoding.mesh_tokens"],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == 5
    alone = found.pop("(1, 1, 1)")
    assert len({str(rows) for rows in alone["greedy"]}) > 1
    for mesh, tokens in found.items():
        assert tokens == alone, mesh
