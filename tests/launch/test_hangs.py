"""A run that makes no progress ends with the stacks of all threads; a slow one goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mtf.cli import status
from tests import small
from tests.launch.test_local import losses, start

RECIPES = Path(__file__).with_name("slow_data.py")


def arguments(recipe: str, folder: Path, **settings: object) -> list[str]:
    """The command line's arguments of a tiny run."""
    text = small.write_text(folder)
    options = small.arguments(text, model_dir="run", **settings)
    return [f"{RECIPES}:{recipe}", *options[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "blocked"), [(1, 0), (2, 1)])
def test_data_that_never_comes(tmp_path: Path, processes: int, blocked: int) -> None:
    recipe = f"waits_forever(process={blocked})"
    command = arguments(recipe, tmp_path, train_steps=1000, trainer__hang_seconds=15)
    options = ["local", "--processes", str(processes), "--devices-per-process", "1"]
    process = start([*options, "--", *command], tmp_path)
    small.read_until(process.stdout, "step 4/")
    started = time.monotonic()
    output = process.communicate(timeout=120)[0]
    assert 10 < time.monotonic() - started < 60
    assert process.returncode == 1, output
    run_dir = tmp_path / "run"
    assert f"Process {blocked} (host " in output
    said = "failed: no progress for 15 s (reading data, step 5; trainer.hang_seconds is 15). "
    assert f"{said}Its output contains the stack traces of all threads." in output
    assert "slow_data.py" in output
    found = status.read_status(run_dir)
    assert found.state == "failed"
    assert said in str(found.reason)
    doing = [(each["index"], each["doing"], each["condition"]) for each in found.processes]
    assert (blocked, "reading data, step 5", "dead") in doing
    assert len(doing) == processes


@pytest.mark.slow
def test_a_late_process_is_waited_for(tmp_path: Path) -> None:
    """Gloo alone waits for 30 s."""
    recipe = "is_late(process=1, seconds=40.0)"
    command = arguments(recipe, tmp_path, train_steps=2, partitioner__fsdp=2)
    options = ["local", "--processes", "2", "--devices-per-process", "2"]
    process = start([*options, "--", *command], tmp_path)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert len(losses(tmp_path / "run")) == 2


@pytest.mark.slow
def test_a_slow_run_is_no_hang(tmp_path: Path) -> None:
    command = arguments("waits(seconds=4.0)", tmp_path, train_steps=6, trainer__hang_seconds=15)
    output = small.run_process(command, tmp_path)
    assert "stacks" not in output
    (file,) = (tmp_path / "run" / "processes").iterdir()
    written = json.loads(file.read_text())
    assert (written["index"], written["step"], written["ended"]) == (0, 6, True)
    assert status.read_status(tmp_path / "run").state == "finished"
