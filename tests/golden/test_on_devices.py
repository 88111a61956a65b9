"""Training on 4 devices gives T5X's recorded losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import with_devices
from tests.golden import cases, comparing, recorded

ROOT = Path(__file__).resolve().parents[2]
FAST = ("rsqrt", "packed_per_sequence")
SLOW = tuple(name for name in cases.CASES if name not in FAST)


@pytest.mark.parametrize(
    "names",
    [pytest.param(FAST, id="some"), pytest.param(SLOW, id="others", marks=pytest.mark.slow)],
)
def test_on_four_devices(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.ours", "4", *names],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": with_devices(4), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == {*names}
    for name, losses in found.items():
        comparing.assert_losses(cases.CASES[name], losses, recorded.read(name)["losses"]["4"])
