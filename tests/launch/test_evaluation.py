"""`mtf.launch local` evaluates in several processes as in one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import small
from tests.launch.test_local import start

pytestmark = pytest.mark.slow
ANSWERS = ("red", "green", "blue")


def evaluate(folder: Path, processes: int, output: str) -> subprocess.Popen[str]:
    """Starts the evaluation of a run on a file."""
    fields = "files={'validation': 'test.tsv'}, inputs='inputs', targets='targets', name='mine'"
    data = f"data=@mtf.builders.data.files({fields}, metrics=('rouge', 'squad'))"
    lengths = ("data.task_feature_lengths.inputs=32", "data.task_feature_lengths.targets=8")
    options = ["--processes", str(processes), "--devices-per-process", str(4 // processes)]
    recipe = "recipes.evaluate(checkpoint='run')"
    settings = [data, *lengths, "batch_size=4", f"output_dir={output}"]
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
