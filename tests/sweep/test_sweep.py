"""Sweeps on the command line: what they refuse, what they propose, and how they continue."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtf.base.run_end import RunEnd, write_end
from tests import small

optuna = pytest.importorskip("optuna", reason="needs the extra optuna")

from mtf.cli.sweep import runs, study  # noqa: E402
from mtf.cli.sweep.values import parse_values, split_values  # noqa: E402

METRIC = "training_eval/held_out/loss_per_target_token"
RATE = "optimizer.learning_rate.base_learning_rate"
SPACE = [
    f"{RATE}=log:1e-4..1.0",
    "model.network.dropout_rate=0..0.5",
    "batch_size=8..64",
    "model.network.dtype=float32,bfloat16",
]


class KilledError(Exception):
    """Ends a sweep in one of its runs."""


class Stub:
    """Takes the place of the process of a run: its loss is the square of `model.z_loss`.

    Attributes:
      kills_at: how many runs end before the sweep is killed; None: it is not.
      fails: names of runs that fail.
      settings: the swept settings of the runs, the one that was killed included.
    """

    def __init__(self, kills_at: int | None = None, fails: Sequence[str] = ()) -> None:
        self.kills_at, self.fails = kills_at, fails
        self.settings: list[str] = []

    def __call__(self, arguments: Sequence[str], run_dir: Path, interrupts: Any) -> bool:
        (z_loss,) = (text.partition("=")[2] for text in arguments if "z_loss" in text)
        self.settings.append(z_loss)
        if len(self.settings) - 1 == self.kills_at:
            raise KilledError
        if run_dir.name in self.fails:
            return False
        (run_dir / "train").mkdir(parents=True)
        line = {"step": 1, "loss_per_target_token": float(z_loss) ** 2}
        (run_dir / "train" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        write_end(run_dir, RunEnd("finished"))
        return True


def arguments(folder: Path, *sweep: str, **settings: Any) -> list[str]:
    values = {"train_steps": 4, "trainer.eval_period": 2, "checkpoint.save.period": 2}
    own = small.arguments("text.txt", **values, model_dir=folder / "sweep", **settings)
    return [*own, "--sweep", *sweep]


def table(folder: Path) -> list[list[str]]:
    return [*csv.reader((folder / "sweep" / "results.csv").read_text().splitlines())]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('("x","y"),("z",)', ['("x","y")', '("z",)']),
        ("@a.b(c=1, d=[2,3]),@a.e", ["@a.b(c=1, d=[2,3])", "@a.e"]),
        ("None, 0.1", ["None", "0.1"]),
    ],
)
def test_values_are_split_at_their_commas(text: str, expected: list[str]) -> None:
    assert split_values(text) == expected


def test_a_dry_run_lists_the_runs(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    values = ["random_seed=0,1", "model.z_loss=0.0,1e-4"]
    said = small.run([*arguments(tmp_path, *values), "--dry-run"], tmp_path)
    assert said.splitlines() == [
        "4 runs (grid), sorted by train/loss_per_target_token (min)",
        "random_seed=0 model.z_loss=0.0",
        "random_seed=0 model.z_loss=1e-4",
        "random_seed=1 model.z_loss=0.0",
        "random_seed=1 model.z_loss=1e-4",
    ]
    drawn = ["batch_size=1..8", "--sweep-mode", "optuna", "--sweep-runs", "3"]
    said = small.run([*arguments(tmp_path, *drawn), "--dry-run"], tmp_path)
    assert said.splitlines() == [
        "3 runs (optuna), sorted by train/loss_per_target_token (min)",
        "batch_size=1..8",
    ]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (["random_sed=0,1"], "random_sed"),
        (["random_seed=0,x", "batch_size=8,9.5"], "batch_size=9.5"),
        (["batch_size=8,0"], "batch_size must be at least 1"),
        (["model_dir=a,b"], "each run has a directory of its own"),
        (["random_seed=0,1", "--print", "flat"], "--sweep cannot be used with --print"),
        (["random_seed=1,,2"], "--sweep random_seed=1,,2: a value is empty"),
        (["random_seed=1,1"], "the value 1 is given twice"),
        (["random_seed=1..2"], "an interval needs --sweep-mode random or optuna"),
        (["model.z_loss=1..0.5", "--sweep-mode", "random", "--sweep-runs", "3"], "low <= high"),
        (["model.z_loss=log:0..1", "--sweep-mode", "random", "--sweep-runs", "3"], "model.z_loss="),
        (["random_seed=1,2", "--sweep-mode", "random"], "random: expected --sweep-runs N"),
        (["random_seed=1,2", "--sweep-runs", "3"], "grid: expected no --sweep-runs"),
        (["random_seed=1,2", "--sweep-mode", "optuna", "--sweep-runs", "0"], "at least 1"),
        (["random_seed=1,2", "--sweep-metric", "train/acuracy"], "Did you mean train/accuracy"),
        (["random_seed=1,2", "--sweep-metric", "accuracy"], "expected train/NAME"),
    ],
)
def test_mistakes_of_any_run_are_reported_before_the_first(
    tmp_path: Path, sweep: list[str], said: str
) -> None:
    small.write_text(tmp_path)
    assert said in small.run(arguments(tmp_path, *sweep), tmp_path, status=2)
    assert not (tmp_path / "sweep").exists()


def test_directories_that_are_refused(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "config.json").write_text("{}")
    said = small.run(arguments(tmp_path, "random_seed=0,1"), tmp_path, status=2)
    assert "is the directory of a run; set model_dir to another one" in said
    command = [*small.arguments("text.txt", model_dir="gs://b/sweep"), "--sweep", "random_seed=0,1"]
    assert "a sweep needs a local directory" in small.run(command, tmp_path, status=2)


@pytest.mark.parametrize("search", [[], ["--sweep-mode", "random", "--sweep-runs", "4"]])
def test_a_sweep_continues_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: list[str]
) -> None:
    small.write_text(tmp_path)
    values = "log:0.1..0.9" if search else "0.3,0.1,0.4,0.2"
    command = arguments(tmp_path, f"model.z_loss={values}", *search)
    monkeypatch.setattr(runs, "_run", killed := Stub(kills_at=2))
    with pytest.raises(KilledError):
        small.run(command, tmp_path)
    monkeypatch.setattr(runs, "_run", other := Stub(fails=["002"]))
    said = small.run(command, tmp_path, status=1)
    assert len(killed.settings) == 3 and len(other.settings) == 2
    assert other.settings[0] == killed.settings[2]
    order = [*killed.settings, other.settings[1]]
    if not search:
        assert order == ["0.3", "0.1", "0.4", "0.2"]
    assert said.splitlines()[:2] == [
        f"run 002 of 4: model.z_loss={order[2]}",
        f"run 003 of 4: model.z_loss={order[3]}",
    ]
    header, *rows = table(tmp_path)
    assert header == ["run", "model.z_loss", "train/loss_per_target_token", "state"]
    finished = sorted((float(order[i]) ** 2, f"{i:03}") for i in (0, 1, 3))
    assert [(float(row[2]), row[0]) for row in rows[:3]] == finished
    assert rows[3] == ["002", order[2], "", "unfinished"]
    assert (tmp_path / "sweep" / "results.png").stat().st_size > 1000
    # A run that failed is tried again.
    monkeypatch.setattr(runs, "_run", again := Stub())
    small.run(command, tmp_path)
    assert again.settings == [order[2]]
    other_sweep = small.run(arguments(tmp_path, "random_seed=0,1"), tmp_path, status=2)
    assert "contains a different sweep. These differ: " in other_sweep


def loss(values: Mapping[str, str]) -> float:
    """A loss whose smallest value is 0, at 0.01, 0.1, 32 and float32."""
    rate, dropout = float(values[RATE]), float(values["model.network.dropout_rate"])
    return (
        math.log10(rate / 0.01) ** 2
        + 16 * (dropout - 0.1) ** 2
        + (math.log2(int(values["batch_size"]) / 32)) ** 2
        + (values["model.network.dtype"] != "float32")
    )


def run(folder: Path, search: Any, number: int) -> list[dict[str, str]]:
    """Runs trials, and returns their values."""
    searched = study.Study(folder, parse_values(SPACE), search, "loss", "min", ["a config"])
    found = []
    for trial, values in searched.trials(number):
        found.append(values)
        searched.tell(trial, loss(values))
    return found


@pytest.fixture
def no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the time of a table and a plot for each trial."""
    monkeypatch.setattr(study.Study, "write_results", lambda self: None)


def test_optuna_finds_better_values_than_random_draws(tmp_path: Path, no_results: None) -> None:
    drawn = run(tmp_path / "random", "random", 90)
    for values in drawn:
        assert 1e-4 <= float(values[RATE]) <= 1 and 8 <= int(values["batch_size"]) <= 64
    best_of_30 = [min(map(loss, drawn[i : i + 30])) for i in (0, 30, 60)]
    found = run(tmp_path / "optuna", "optuna", 30)
    assert min(map(loss, found)) < statistics.median(best_of_30)


def test_a_study_that_is_killed_proposes_the_same_values(tmp_path: Path, no_results: None) -> None:
    whole = run(tmp_path / "whole", "optuna", 13)
    parts = []
    for number in (1, 2, 12, 13):
        # Killed in a trial, which is then the first of the next process.
        parts += run(tmp_path / "parts", "optuna", number - 1)
        searched = study.Study(
            tmp_path / "parts", parse_values(SPACE), "optuna", "loss", "min", ["a config"]
        )
        next(searched.trials(number))
    parts += run(tmp_path / "parts", "optuna", 13)
    assert parts == whole


@pytest.mark.slow
def test_a_sweep_that_is_killed_in_its_second_run_continues(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    folder = tmp_path / "sweep"
    command = arguments(tmp_path, "random_seed=0,1", "--sweep-metric", METRIC)
    with small.start(command, tmp_path) as process:
        while not (folder / "001" / "config.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.communicate()  # The run notices that its parent is gone, and ends, too.
    ended = (folder / "000" / "end.json").stat().st_mtime_ns

    said = small.run_process(command, tmp_path, timeout=1200)
    assert "run 000" not in said and "run 001 of 2: random_seed=1\n" in said
    assert (folder / "000" / "end.json").stat().st_mtime_ns == ended
    # The table has the best evaluation of each run, the smallest loss first.
    expected = []
    for seed in "01":
        lines = small.read_metrics(folder / f"00{seed}", "training_eval/held_out")
        assert [line["step"] for line in lines] == [2, 4]
        best = min(line["loss_per_target_token"] for line in lines)
        expected.append([f"00{seed}", seed, best, "finished"])
    header, *rows = table(tmp_path)
    assert header == ["run", "random_seed", METRIC, "state"]
    found = [[*row[:2], float(row[2]), row[3]] for row in rows]
    assert found == sorted(expected, key=lambda row: row[2])


@pytest.mark.slow
def test_the_page_s_loop(tmp_path: Path) -> None:
    page = (small.ROOT / "docs" / "config.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("train_steps=200", "train_steps=3").replace("n_trials=20", "n_trials=2")
    small.python("-c", code, cwd=tmp_path)
    losses = []
    for name in ("0", "1"):
        [line] = small.read_metrics(tmp_path / "runs/study" / name, "training_eval/held_out")
        losses.append(line["loss_per_target_token"])
    assert all(map(math.isfinite, losses))
