"""Training on 4 devices gives T5X's recorded losses."""

from __future__ import annotations

import json

import pytest

from tests.conftest import with_devices
from tests.golden import cases, comparing, recorded
from tests.small import python

FAST = ("rsqrt", "packed_per_sequence")
SLOW = tuple(name for name in cases.CASES if name not in FAST)


@pytest.mark.parametrize(
    "names",
    [pytest.param(FAST, id="some"), pytest.param(SLOW, id="others", marks=pytest.mark.slow)],
)
def test_on_four_devices(names: tuple[str, ...]) -> None:
    done = python("-m", "tests.golden.ours", "4", *names, XLA_FLAGS=with_devices(4))
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == {*names}
    for name, losses in found.items():
        comparing.assert_losses(cases.CASES[name], losses, recorded.read(name)["losses"]["4"])
