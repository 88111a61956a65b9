"""`mtf launch local` evaluates in several processes as in one."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from mtf.cli import status
from tests import small
from tests.launch import slow_data
from tests.launch.test_local import died, kill, start

pytestmark = pytest.mark.slow
ANSWERS = ("red", "green", "blue")


def evaluate(
    folder: Path,
    processes: int,
    output: str,
    recipe: str = "recipes.evaluate(checkpoint='run')",
    *more: str,
) -> subprocess.Popen[str]:
    """Starts the evaluation of a run on a file."""
    fields = "files={'validation': 'test.tsv'}, inputs='inputs', targets='targets'"
    data = f"data=@mtf.builders.data.files({fields}, metrics=('rouge', 'squad'))"
    lengths = ("data.task_feature_lengths.inputs=32", "data.task_feature_lengths.targets=8")
    options = ["--processes", str(processes), "--devices-per-process", str(4 // processes)]
    name = "data.mixture_or_task_name=mine"
    settings = [data, name, *lengths, "batch_size=4", f"output_dir={output}", *more]
    return start(["local", *options, "--", recipe, "--set", *settings], folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny run and of a file to evaluate it on."""
    folder = tmp_path_factory.mktemp("evaluation")
    command = small.arguments(small.write_text(folder), train_steps=3, model_dir="run")
    small.run_process(command, folder)
    rows = [f"{i} apples\t{ANSWERS[i % 3]}" for i in range(30)]
    (folder / "test.tsv").write_text("inputs\ttargets\n" + "\n".join(rows) + "\n")
    return folder


def test_two_processes_give_the_results_of_one(folder: Path) -> None:
    found = []
    for processes in (1, 2):
        process = evaluate(folder, processes, f"with-{processes}")
        shown = process.communicate(timeout=240)[0]
        assert process.returncode == 0, shown
        results = json.loads((folder / f"with-{processes}" / "results.json").read_text())
        files = sorted((folder / f"with-{processes}").rglob("*.jsonl*"))
        found.append((results["tasks"], [file.read_text() for file in files]))
    assert found[0] == found[1]
    assert 30 in [text.count("\n") for text in found[0][1]]
    found_status = status.read_status(folder / "with-2")
    assert (found_status.state, found_status.trains) == ("finished", False)
    conditions = [(each["index"], each["condition"]) for each in found_status.processes]
    assert conditions == [(0, "ended"), (1, "ended")]


WAITS = f"{slow_data.__file__}:evaluation_waits_forever(process=1)"


def test_a_process_that_hangs(folder: Path) -> None:
    process = evaluate(folder, 2, "hangs", WAITS, "hang_seconds=10")
    small.read_until(process.stdout, "run/checkpoints/checkpoint_3: ")
    started = time.monotonic()
    output = process.communicate(timeout=120)[0]
    assert 8 < time.monotonic() - started < 60
    assert process.returncode == 1, output
    said = "failed: no progress for 10 s (reading data; hang_seconds is 10). Its output contains"
    assert re.search(rf"error: Process 1 \(host .*\) {re.escape(said)}", output)
    assert "slow_data.py" in output
    found = status.read_status(folder / "hangs")
    assert found.state == "failed"
    assert said in str(found.reason)


def test_a_process_that_dies(folder: Path) -> None:
    process = evaluate(folder, 2, "dies", WAITS)
    small.read_until(process.stdout, "run/checkpoints/checkpoint_3: ")
    while not (folder / "dies" / "processes" / "1.json").is_file():
        time.sleep(0.1)
    found = status.read_status(folder / "dies")
    assert found.state == "running"
    assert [each["condition"] for each in found.processes] == ["running", "running"]
    kill(process, 1)
    found = status.read_status(folder / "dies")
    assert found.state == "failed"
    assert re.fullmatch(died(1), str(found.reason))
    # What was written is used, and the results are those of an evaluation that was not killed.
    process = evaluate(folder, 2, "dies")
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert status.read_status(folder / "dies").state == "finished"
