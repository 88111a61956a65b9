"""Sweeps whose values Optuna proposes."""

from __future__ import annotations

import csv
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import recipes
from mtf.errors import UserError
from mtf.sweep import Study, results, runs
from mtf.sweep.values import as_axes, combinations
from tests import small
from tests.sweep.killing import KilledError, Stub, kill_in

optuna = pytest.importorskip("optuna", reason="needs the extra optuna")

RATE = "optimizer.learning_rate.base_learning_rate"
VALUES = {
    RATE: "log:1e-4..1.0",
    "model.network.dropout_rate": "0..0.5",
    "batch_size": "8..64",
    "model.network.dtype": ["float32", "bfloat16"],
}


def loss(values: Mapping[str, str]) -> float:
    """A loss whose smallest value is 0, at 0.01, 0.1, 32 and float32."""
    rate, dropout = float(values[RATE]), float(values["model.network.dropout_rate"])
    return (
        math.log10(rate / 0.01) ** 2
        + 16 * (dropout - 0.1) ** 2
        + (math.log2(int(values["batch_size"]) / 32)) ** 2
        + (values["model.network.dtype"] != "float32")
    )


def study(folder: Path | str, **changes: object) -> Study:
    given = {"mode": "min", "metric": "my loss", **changes}
    return Study(recipes.quickstart(), VALUES, str(folder), **given)  # type: ignore[arg-type]


def run(searched: Study, number: int) -> list[dict[str, str]]:
    """Runs trials, and returns their values."""
    found = []
    for trial in searched.trials(number):
        found.append(trial.values)
        searched.tell(trial, loss(trial.values))
    return found


@pytest.fixture(autouse=True)
def _no_plot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the time of a plot for each trial."""
    if "test_the_table" not in request.node.name:
        monkeypatch.setattr(results, "write_plot", lambda *_: None)


def test_it_finds_better_values_than_random_draws(tmp_path: Path) -> None:
    found = run(study(tmp_path), 30)
    assert len(found) == 30
    for values in found:
        assert 1e-4 <= float(values[RATE]) <= 1 and 8 <= int(values["batch_size"]) <= 64
    axes = as_axes(VALUES)
    drawn = [min(map(loss, combinations(axes, "random", 30, seed))) for seed in range(101)]
    assert min(map(loss, found)) < statistics.median(drawn)


def test_a_study_that_is_killed_goes_on_with_the_same_values(tmp_path: Path) -> None:
    whole = run(study(tmp_path / "whole"), 13)
    parts = []
    for number in range(13):
        if number == 2:  # Killed between its creation and its values.
            storage = storage_in(tmp_path / "parts")
            assert optuna.load_study(study_name="sweep", storage=storage).ask().number == 2
        elif number in (1, 12):
            asked = study(tmp_path / "parts").ask()
            assert asked.name == f"{number:03}"
        parts += run(study(tmp_path / "parts"), number + 1)
    assert parts[:2] + parts[3:] == whole[:2] + whole[3:]
    assert parts[2].keys() == whole[2].keys()


def test_the_table_and_the_study_have_each_trial(tmp_path: Path) -> None:
    searched = study(tmp_path / "sweep", mode="max")
    scores = [2.0, None, math.nan, 5.0]
    for trial, score in zip(searched.trials(4), scores, strict=True):
        assert trial.config.model_dir == str(tmp_path / "sweep" / trial.name)
        assert str(trial.config.batch_size) == trial.values["batch_size"]
        searched.tell(trial, score)
    assert searched.num_told == 4 and not list(searched.trials(3))
    header, *rows = csv.reader((tmp_path / "sweep/results.csv").read_text().splitlines())
    assert header == ["run", *VALUES, "my loss", "state"]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [
        ("003", "5.0", "finished"),
        ("000", "2.0", "finished"),
        ("001", "", "failed"),
        ("002", "", "failed"),
    ]
    assert (tmp_path / "sweep/results.png").stat().st_size > 1000
    stored = optuna.load_study(study_name="sweep", storage=storage_in(tmp_path / "sweep"))
    assert stored.direction.name == "MAXIMIZE" and stored.best_trial.number == 3
    states = [trial.state.name for trial in stored.trials]
    assert states == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    rates = {f"{trial.params[RATE]:.4g}" for trial in stored.trials}
    assert rates == {row[1] for row in rows}


def test_mistakes_in_python(tmp_path: Path) -> None:
    searched = study(tmp_path)
    with pytest.raises(UserError, match=r"not told the score of trial 000"):
        list(searched.trials(2))
    with pytest.raises(UserError, match="has a sweep with other runs"):
        study(tmp_path, mode="max")
    with pytest.raises(UserError, match="needs a directory on this machine"):
        study("gs://bucket/sweep")


def test_mistakes_on_the_command_line(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    command = [*small.arguments("text.txt", model_dir="sweep"), "--sweep-mode", "optuna"]
    searched = ["--sweep-runs", "3", "--sweep", "batch_size=1..8"]
    said = small.run([*command, *searched, "model.z_loss=0,x"], tmp_path, status=2)
    assert "model.z_loss=x" in said
    said = small.run([*command, "--sweep", "batch_size=1..8"], tmp_path, status=2)
    assert "--sweep-mode optuna needs --sweep-runs N" in said
    said = small.run([*command, *searched, "--dry-run"], tmp_path)
    assert said.splitlines() == [
        "3 runs, for which Optuna chooses values by train/loss_per_target_token (min)",
        "batch_size=1..8",
    ]
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.write_text(tmp_path)
    command = [
        *small.arguments("text.txt", model_dir="sweep"),
        *("--sweep-mode", "optuna", "--sweep", "model.z_loss=log:1e-4..1e-1", "--sweep-runs"),
    ]
    killed, other = Stub(kills_at=2, fails=["000"]), Stub()
    monkeypatch.setattr(runs, "_run", killed)
    with pytest.raises(KilledError):
        small.run([*command, "4"], tmp_path)
    monkeypatch.setattr(runs, "_run", other)
    said = small.run([*command, "4"], tmp_path, status=1)
    assert len(other.settings) == 2 and other.settings[0] == killed.settings[2]
    assert [line.partition(":")[0] for line in said.splitlines()[1:3]] == [
        "run 3 of 4 (002)",
        "run 4 of 4 (003)",
    ]
    said = small.run([*command, "5"], tmp_path, status=1)
    assert "4 of 5 runs are done" in said and "run 5 of 5 (004)" in said
    trials = optuna.load_study(study_name="sweep", storage=storage_in(tmp_path / "sweep")).trials
    assert [trial.state.name for trial in trials] == ["FAIL", *["COMPLETE"] * 4]
    for trial in trials[1:]:
        assert trial.value == pytest.approx(trial.params["model.z_loss"] ** 2, rel=1e-3)


def storage_in(folder: Path) -> str:
    return f"sqlite:///{folder}/optuna.db"


def values_of(folder: Path) -> list[list[str]]:
    """The values of the trials, as on the command line."""
    trials = optuna.load_study(study_name="sweep", storage=storage_in(folder)).trials
    return [
        [f"model.z_loss={t.params['model.z_loss']:.4g}", f"random_seed={t.params['random_seed']}"]
        for t in trials
    ]


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    folder = tmp_path / "sweep"
    settings = {"train_steps": 4, "trainer.eval_period": 2, "checkpoint.save.period": 2}
    metric = "training_eval/held_out/loss_per_target_token"
    command = [
        *small.arguments("text.txt", **settings, model_dir=folder),
        *("--sweep-mode", "optuna", "--sweep-runs", "3", "--sweep-metric", metric),
        *("--sweep", "model.z_loss=log:1e-5..1e-1", "random_seed=0..9"),
    ]
    kill_in(folder / "001", command, tmp_path)
    ended = (folder / "000" / "end.json").stat().st_mtime_ns
    before = values_of(folder)
    assert len(before) == 2

    said = small.run_process(command, tmp_path)
    assert "1 of 3 runs are done" in said and "run 1 of 3" not in said
    assert f"run 2 of 3 (001): {' '.join(before[1])}\n" in said and "run 3 of 3 (002)" in said
    assert (folder / "000" / "end.json").stat().st_mtime_ns == ended
    assert values_of(folder)[:2] == before

    expected = []
    for number, values in enumerate(values_of(folder)):
        lines = small.read_metrics(folder / f"{number:03}", "training_eval/held_out")
        assert [line["step"] for line in lines] == [2, 4]
        loss = min(line["loss_per_target_token"] for line in lines)
        expected.append([f"{number:03}", *(text.partition("=")[2] for text in values), loss])
    header, *rows = csv.reader((folder / "results.csv").read_text().splitlines())
    assert header == ["run", "model.z_loss", "random_seed", metric, "state"]
    assert [[*row[:3], float(row[3])] for row in rows] == sorted(expected, key=lambda r: r[3])
    assert {row[4] for row in rows} == {"finished"}


@pytest.mark.slow
def test_the_page_s_loop(tmp_path: Path) -> None:
    page = (small.ROOT / "docs" / "sweeps.md").read_text()
    loop, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    imports = "".join(re.findall(r"^(?:import|from) .*\n", loop, re.MULTILINE))
    code = code.replace("train_steps=200", "train_steps=3").replace("trials(20)", "trials(2)")
    run = [sys.executable, "-c", imports + code]
    subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    losses = []
    for name in ("000", "001"):
        [line] = small.read_metrics(tmp_path / "runs/study" / name, "training_eval/held_out")
        losses.append(line["loss_per_target_token"])
    _, *rows = csv.reader((tmp_path / "runs/study/results.csv").read_text().splitlines())
    assert [float(row[3]) for row in rows] == sorted(losses)
