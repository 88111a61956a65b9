"""Sweeps on the command line: what they refuse, and one that is killed and goes on."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.sweep import runs
from tests import small
from tests.sweep.killing import KilledError, Stub, kill_in

METRIC = "training_eval/held_out/loss_per_target_token"


def arguments(folder: Path, *sweep: str, **settings: Any) -> list[str]:
    values = {"train_steps": 4, "trainer.eval_period": 2, "checkpoint.save.period": 2}
    own = small.arguments("text.txt", **values, model_dir=folder / "sweep", **settings)
    return [*own, "--sweep", *sweep]


def test_a_dry_run_lists_the_runs(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    values = ["random_seed=0,1", "model.z_loss=0.0,1e-4"]
    said = small.run([*arguments(tmp_path, *values), "--dry-run"], tmp_path)
    assert said.splitlines() == [
        "4 runs, sorted by train/loss_per_target_token (min)",
        "000  random_seed=0 model.z_loss=0.0",
        "001  random_seed=0 model.z_loss=1e-4",
        "002  random_seed=1 model.z_loss=0.0",
        "003  random_seed=1 model.z_loss=1e-4",
    ]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (["random_sed=0,1"], "random_sed"),
        (["random_seed=0,x", "batch_size=8,9.5"], "random_seed=x"),
        (["random_seed=0,x", "batch_size=8,9.5"], "batch_size=9.5"),
        (["batch_size=8,0"], "batch_size must be at least 1"),
        (["model_dir=a,b"], "each run has a directory below that of the sweep"),
        (["random_seed=0,1", "--print", "flat"], "--sweep: not with --print"),
    ],
)
def test_mistakes_of_any_run_are_said_before_the_first(
    tmp_path: Path, sweep: list[str], said: str
) -> None:
    small.write_text(tmp_path)
    assert said in small.run(arguments(tmp_path, *sweep), tmp_path, status=2)
    assert not (tmp_path / "sweep").exists()


def test_a_run_s_directory_is_refused(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "config.json").write_text("{}")
    said = small.run(arguments(tmp_path, "random_seed=0,1"), tmp_path, status=2)
    assert "is the directory of a run; set model_dir to another one" in said


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.write_text(tmp_path)
    command = arguments(tmp_path, "model.z_loss=0.3,0.1,0.4,0.2")
    killed, other = Stub(kills_at=2), Stub(fails=["002"])
    monkeypatch.setattr(runs, "_run", killed)
    with pytest.raises(KilledError):
        small.run(command, tmp_path)
    monkeypatch.setattr(runs, "_run", other)
    said = small.run(command, tmp_path, status=1)
    assert killed.settings == [["model.z_loss=0.3"], ["model.z_loss=0.1"], ["model.z_loss=0.4"]]
    assert other.settings == [["model.z_loss=0.4"], ["model.z_loss=0.2"]]
    assert said.splitlines()[1:3] == [
        "run 3 of 4 (002): model.z_loss=0.4",
        "run 4 of 4 (003): model.z_loss=0.2",
    ]
    _, *rows = csv.reader((tmp_path / "sweep/results.csv").read_text().splitlines())
    assert [(name, round(float(score or 0), 3), state) for name, _, score, state in rows] == [
        ("001", 0.01, "finished"),
        ("003", 0.04, "finished"),
        ("000", 0.09, "finished"),
        ("002", 0, "failed"),
    ]
    # What failed is tried again.
    monkeypatch.setattr(runs, "_run", again := Stub())
    small.run(command, tmp_path)
    assert again.settings == [["model.z_loss=0.4"]]


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    folder = tmp_path / "sweep"
    values = ["random_seed=0,1,2", "model.z_loss=0.0,1e-2", "--sweep-metric", METRIC]
    command = arguments(tmp_path, *values)
    kill_in(folder / "003", command, tmp_path)
    ended = {own: (folder / own / "end.json").stat().st_mtime_ns for own in ("000", "001", "002")}
    assert not (folder / "004").exists()

    said = small.run_process(command, tmp_path)
    assert "of 6 runs are done" in said
    assert "(000)" not in said and "run 6 of 6 (005): random_seed=2 model.z_loss=1e-2\n" in said
    for own, when in ended.items():
        assert (folder / own / "end.json").stat().st_mtime_ns == when
    settings = json.loads((folder / "sweep.json").read_text())["runs"]
    assert settings["003"] == ["random_seed=1", "model.z_loss=1e-2"]

    # The table has the best evaluation of each run, the smallest loss first.
    expected = {}
    for own, (seed, z_loss) in settings.items():
        lines = small.read_metrics(folder / own, "training_eval/held_out")
        assert [line["step"] for line in lines] == [2, 4]
        best = min(line["loss_per_target_token"] for line in lines)
        expected[own] = [own, seed.partition("=")[2], z_loss.partition("=")[2], best]
    header, *rows = csv.reader((folder / "results.csv").read_text().splitlines())
    assert header == ["run", "random_seed", "model.z_loss", METRIC, "state"]
    assert [[*row[:3], float(row[3])] for row in rows] == sorted(
        expected.values(), key=lambda row: row[3]
    )
    assert {row[4] for row in rows} == {"finished"}
    assert (folder / "results.png").stat().st_size > 1000

    # The run that was killed ended as one that was not.
    alone = small.arguments(
        "text.txt",
        **{"train_steps": 4, "trainer.eval_period": 2, "checkpoint.save.period": 2},
        **{"random_seed": 1, "model.z_loss": 1e-2, "model_dir": "alone"},
    )
    small.run(alone, tmp_path)
    small.assert_same_end(folder / "003", tmp_path / "alone", 4)

    # Another sweep is not mixed with it.
    other = small.run(arguments(tmp_path, "random_seed=0,1"), tmp_path, status=2)
    assert "has a sweep with other runs (6, these are 2" in other


@pytest.mark.slow
def test_the_page_s_loop(tmp_path: Path) -> None:
    page = (small.ROOT / "docs" / "sweeps.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("train_steps=200", "train_steps=3")
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    results = {}
    for folder in (tmp_path / "runs").iterdir():
        batch_size = _value(folder)
        [line] = small.read_metrics(folder, "training_eval/held_out")
        results[batch_size] = line["loss_per_target_token"]
    assert set(results) == {8, 16}
    best = min(results, key=lambda size: results[size])
    assert done.stdout.splitlines()[-1] == f"({results[best]}, {{'batch_size': {best}}})"


def _value(run_dir: Path) -> int:
    """The batch size in a run's config."""
    found = re.search(r"^batch_size = (\d+)$", (run_dir / "config.txt").read_text(), re.MULTILINE)
    assert found
    return int(found[1])
