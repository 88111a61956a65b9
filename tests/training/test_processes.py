"""Several processes train as one does, and a run may go on with another number of them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests import small
from tests.processes import run_processes, start_processes


def train(run_dir: Path, train_steps: int, num_processes: int, *text: Path) -> str:
    """Runs all processes to their end; returns what the first printed."""
    module = "tests.training.two_processes"
    outputs = run_processes(module, num_processes, run_dir, train_steps, *text)
    assert all("step" not in output for output in outputs[1:]), "only one process reports"
    return outputs[0]


def metrics(run_dir: Path, name: str) -> list[dict[str, float]]:
    lines = (run_dir / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_two_processes_then_one_give_the_losses_of_one(tmp_path: Path, streamed: bool) -> None:
    text, evaluation = [], "training_eval/held_out"
    if streamed:  # by one stream, which both processes read
        pytest.importorskip("datasets")
        text, evaluation = [tmp_path / "text.txt"], "training_eval/validation"
        text[0].write_text("".join(f"Line {i} {'word ' * (i % 30)}\n" for i in range(500)))
    train(tmp_path / "one", 8, 1, *text)
    train(tmp_path / "both", 4, 2, *text)
    output = train(tmp_path / "both", 8, 1, *text)
    assert "resuming from step 4" in output
    for name, steps in (("train", 8), (evaluation, 2)):
        expected, ours = metrics(tmp_path / "one", name), metrics(tmp_path / "both", name)
        assert [line["step"] for line in ours] == [line["step"] for line in expected]
        assert len(ours) == steps
        for key in ("loss", "accuracy", "non_padding_fraction/overall"):
            np.testing.assert_allclose(
                [line[key] for line in ours], [line[key] for line in expected], rtol=1e-5
            )


@pytest.mark.slow
def test_ctrl_c_of_one_process_stops_both_at_the_same_step(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    processes = start_processes("tests.training.two_processes", 2, run_dir, 100_000)
    try:
        small.read_until(processes[0].stdout, "step 3/")
        processes[1].send_signal(signal.SIGINT)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    said = re.search(r"^another process's signal: saved step (\d+) in ", outputs[0], re.MULTILINE)
    assert said, outputs[0]
    assert "SIGINT: saving after this step" in outputs[1]
    assert small.steps(run_dir)[-1] == int(said[1])
    assert metrics(run_dir, "train")[-1]["step"] == int(said[1])
