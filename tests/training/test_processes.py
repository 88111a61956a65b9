"""Several processes train as one does, and a run may go on with another number of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.processes import run_processes


def train(run_dir: Path, train_steps: int, num_processes: int) -> str:
    """Runs all processes to their end; returns what the first printed."""
    module = "tests.training.two_processes"
    outputs = run_processes(module, num_processes, run_dir, train_steps)
    assert all("step" not in output for output in outputs[1:]), "only one process reports"
    return outputs[0]


def metrics(run_dir: Path, name: str) -> list[dict[str, float]]:
    lines = (run_dir / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_two_processes_then_one_give_the_losses_of_one(tmp_path: Path) -> None:
    train(tmp_path / "one", 8, num_processes=1)
    train(tmp_path / "both", 4, num_processes=2)
    output = train(tmp_path / "both", 8, num_processes=1)
    assert "continuing from step 4" in output
    for name, steps in (("train", 8), ("training_eval/held_out", 2)):
        expected, ours = metrics(tmp_path / "one", name), metrics(tmp_path / "both", name)
        assert [line["step"] for line in ours] == [line["step"] for line in expected]
        assert len(ours) == steps
        for key in ("loss", "accuracy", "non_padding_fraction/overall"):
            np.testing.assert_allclose(
                [line[key] for line in ours], [line[key] for line in expected], rtol=1e-5
            )
