"""`--all`, which converts the checkpoints of a run, and the bar of bytes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mtf import convert
from mtf.base.writing import JOB_FILE
from tests.conversion import writers
from tests.conversion.writers import assert_holds

STEPS = (5, 10, 100)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A directory of three checkpoints and an unfinished one."""
    for step in STEPS:
        writers.write_t5x(tmp_path / "run", writers.random_parameters(seed=step), step)
    (tmp_path / "run" / "checkpoint_200.tmp-123").mkdir()
    return tmp_path / "run"


def run(source: Path, out: Path, to: str, *options: str) -> int:
    return convert.main([str(source), str(out), "--to", to, "--all", *options])


def test_each_checkpoint_is_converted_once(
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    totals, shown = [], []

    @contextlib.contextmanager
    def bar(total: int, unit: str) -> Iterator[Callable[[int, int, str], None]]:
        totals.append(total)
        yield lambda completed, _, title: shown.append(completed)

    monkeypatch.setattr("mtf.jobs.convert.export._MEGABYTE", 1)
    monkeypatch.setattr("mtf.jobs.convert.export.rate_bar", bar)
    out = tmp_path / "out"
    assert run(run_dir, out, "hf") == 0
    assert {path.name for path in out.glob("checkpoint_*")} == {f"checkpoint_{s}" for s in STEPS}
    assert {path.name for path in out.iterdir() if path.is_file()} == {JOB_FILE}
    for step in STEPS:
        assert_holds(out / f"checkpoint_{step}", writers.random_parameters(seed=step))
    size = sum(4 * array.size for array in writers.random_parameters().values())
    assert totals == [size] * 3 and shown.count(size) == 3

    shutil.rmtree(out / "checkpoint_10")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(run_dir, out, "hf") == 0
    said = capsys.readouterr().out
    assert said.count(", which already exists") == 2
    assert "[2/3] checkpoint_10" in said and "3 of 3 checkpoints are in" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_holds(out / "checkpoint_10", writers.random_parameters(seed=10))


def test_one_that_fails_does_not_lose_the_others(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = writers.random_parameters()
    parameters["encoder/layers_0/mlp/wo/kernel"][0, 0] = np.nan
    shutil.rmtree(run_dir / "checkpoint_10")
    writers.write_t5x(run_dir, parameters, 10)
    out = tmp_path / "out"
    assert run(run_dir, out, "t5x") == 1
    printed = capsys.readouterr()
    assert "2 of 3 checkpoints are in" in printed.out
    assert "error: The tensor target/encoder/layers_0/mlp/wo/kernel" in printed.err
    assert "error: 1 failed: checkpoint_10\n" in printed.err
    assert {path.name for path in out.glob("*_*[0-9]")} == {"checkpoint_5", "checkpoint_100"}
    assert run(run_dir, out, "t5x", "--allow-non-finite") == 0


def test_refusals(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(run_dir, tmp_path / "out", "hf", "--step", "5") == 2
    assert "--step cannot be used with --all" in capsys.readouterr().err
    assert run(tmp_path / "none", tmp_path / "out", "hf") == 2
    assert "has no directories named checkpoint_STEP" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
