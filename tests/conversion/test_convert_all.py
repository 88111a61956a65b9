"""`--all`, which converts the checkpoints of a run, and the bar of bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from conversion import open_checkpoint
from mtf import convert
from mtf.convert_all import bytes_bar
from tests.conversion import writers
from tests.conversion.test_round_trips import assert_holds

STEPS = (5, 10, 100)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A directory of three checkpoints and an unfinished one."""
    for step in STEPS:
        parameters = writers.random_parameters(seed=step)
        writers.write_t5x(tmp_path / "run", parameters, step, adafactor=step == 10)
    (tmp_path / "run" / "checkpoint_200.tmp-123").mkdir()
    return tmp_path / "run"


def run(source: Path, out: Path, to: str, *options: str) -> int:
    return convert.main([str(source), str(out), "--to", to, "--all", *options])


@pytest.mark.parametrize("to", ["t5x", "mtf", "hf", "hf_flax"])
def test_each_checkpoint_is_converted(to: str, run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(run_dir, out, to) == 0
    assert {path.name for path in out.iterdir()} == {f"checkpoint_{step}" for step in STEPS}
    for step in STEPS:
        assert_holds(out / f"checkpoint_{step}", writers.random_parameters(seed=step))


def test_finished_ones_are_skipped(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(run_dir, out, "hf") == 0
    shutil.rmtree(out / "checkpoint_10")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(run_dir, out, "hf") == 0
    said = capsys.readouterr().out
    assert said.count("is complete; skipped") == 2
    assert "[2/3] checkpoint_10" in said and "3 of 3 checkpoints are in" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_holds(out / "checkpoint_10", writers.random_parameters(seed=10))


@pytest.mark.parametrize("to", ["t5x", "hf"])
def test_one_that_fails_does_not_lose_the_others(
    to: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = writers.random_parameters()
    parameters["encoder/layers_0/mlp/wo/kernel"][0, 0] = np.nan
    shutil.rmtree(run_dir / "checkpoint_10")
    writers.write_t5x(run_dir, parameters, 10)
    out = tmp_path / "out"
    assert run(run_dir, out, to) == 1
    printed = capsys.readouterr()
    assert "2 of 3 checkpoints are in" in printed.out
    assert "error: 1 failed:\n  checkpoint_10: The tensor target/encoder/layers_0" in printed.err
    assert {path.name for path in out.iterdir()} == {"checkpoint_5", "checkpoint_100"}
    assert run(run_dir, out, to, "--allow-non-finite") == 0


def test_what_is_there_is_checked(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(run_dir, out, "hf") == 0
    weights = out / "checkpoint_5" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 8)
    assert run(run_dir, out, "hf") == 1
    message = capsys.readouterr().err
    assert "checkpoint_5 exists, but is not the conversion of" in message
    assert "truncated" in message
    assert run(run_dir, out, "hf", "--dtype", "bfloat16") == 1
    assert "error: 3 failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step", "5"], "--step: not with --all"),
        (["--push-to-hub", "me/model"], "--push-to-hub: not with --all"),
    ],
)
def test_refusals(
    options: list[str],
    words: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(run_dir, tmp_path / "out", "hf", *options) == 2
    assert words in capsys.readouterr().err
    assert run(tmp_path / "none", tmp_path / "out", "hf") == 2
    assert "has no directories named checkpoint_STEP" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_bar_reaches_all_bytes(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(run_dir / "checkpoint_5")
    before, shown = checkpoint.tensors, []
    monkeypatch.setattr("mtf.convert_all._MEGABYTE", 1)

    class Bar:
        def __init__(self, total: int, unit: str) -> None:
            shown.append(total)

        def __enter__(self) -> object:
            return lambda completed, _, title: shown.append(completed)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("mtf.convert_all.rate_bar", Bar)
    with bytes_bar(checkpoint, "title", "target/"):
        for tensor in checkpoint.parameters().values():
            tensor.read()
    size = sum(4 * array.size for array in writers.random_parameters().values())
    assert (shown[0], shown[-1]) == (size, size)
    assert checkpoint.tensors is before
