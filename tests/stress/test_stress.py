"""Short versions of the programs in this folder."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import small, stores
from tests.stress import (
    command_stops,
    disk_full,
    random_stops,
    store_faults,
    store_kills,
)

pytestmark = pytest.mark.slow


def test_random_stops(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    assert len(random_stops.run_stops(tmp_path, 6, 1, random.Random(1))) == 6


def test_random_stops_of_two_processes(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    assert len(random_stops.run_stops(tmp_path, 2, 2, random.Random(1))) == 2


def test_stops_of_commands(tmp_path: Path) -> None:
    rng, kinds = random.Random(1), command_stops.KINDS
    with command_stops.prepared(tmp_path) as variables:
        for name in ("infer", "cache", *command_stops.FORMATS, "fetch"):
            if name in kinds:
                stops = command_stops.Stops(kinds[name], tmp_path, variables)
                assert len(list(stops.stops(1 + (name in command_stops.FORMATS), rng))) > 0


def test_mistakes() -> None:
    small.python("-m", "tests.stress.mistakes", "--quiet")


def test_disk_full(tmp_path: Path) -> None:
    try:
        disk_full.run_moments(tmp_path, 3)
    except disk_full.CannotMountError as error:
        pytest.skip(f"a tmpfs cannot be mounted: {error}")


def test_conversions_to_full_disks(tmp_path: Path) -> None:
    try:
        assert len(list(disk_full.fill_disks(tmp_path, 2))) == len(command_stops.FORMATS)
    except disk_full.CannotMountError as error:
        pytest.skip(f"a tmpfs cannot be mounted: {error}")


def test_kills_of_runs_in_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcp_storage_emulator")
    with stores.gcs("runs") as first, stores.s3("runs") as second:
        for name, value in stores.variables(first, second).items():
            monkeypatch.setenv(name, value)
        expected = store_kills.reference(tmp_path)
        for scheme, number in (("gs", 2), ("s3", 1)):
            lines = store_kills.kill_runs(f"{scheme}://runs", number, expected, random.Random(1))
            assert len(lines) == number


def test_faults_of_stores(tmp_path: Path) -> None:
    pytest.importorskip("gcp_storage_emulator")
    chosen = [
        store_faults.Case("gs", "fetch", "truncated", 1, 1),
        store_faults.Case("gs", "infer", 503, 2, 1000),
        store_faults.Case("gs", "cache", "replaced", 0, 1),
        store_faults.Case("gs", "convert_hf", "hanging", 5, 1000),
        store_faults.Case("s3", "fetch_hf", "flipped", 1, 1000),
        store_faults.Case("s3", "convert", "reset_inside", 2, 1000),
        store_faults.Case("http", "convert_hf", "no_ranges", 0, 1000),
        store_faults.Case("http", "fetch_hf", 429, 1, 1),
        store_faults.Case("gs", "train", 401, 300, 1000),
        store_faults.Case("gs", "train", 503, 300, 1000),
    ]
    outcomes, problems = zip(*store_faults.run_cases(chosen, tmp_path), strict=True)
    assert not any(problems), problems
    assert all("Last complete checkpoint: checkpoint_" in each for each in outcomes[-2:]), outcomes
