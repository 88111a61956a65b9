"""Several processes or devices train as one does, and a run may change their number."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests import small
from tests.conftest import with_devices
from tests.processes import run_processes, start_processes
from tests.small import python


def train(run_dir: Path, train_steps: int, num_processes: int, *text: Path) -> str:
    """Runs all processes to their end; returns what the first printed."""
    module = "tests.training.two_processes"
    outputs = run_processes(module, num_processes, run_dir, train_steps, *text)
    assert all("step" not in output for output in outputs[1:]), "only one process reports"
    return outputs[0]


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
        expected, ours = (small.read_metrics(tmp_path / each, name) for each in ("one", "both"))
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
    assert small.read_metrics(run_dir)[-1]["step"] == int(said[1])


ONE, EIGHT = "(1, 1, 1)", "(2, 2, 2)"


@pytest.mark.slow
def test_no_mesh_and_no_microbatches_change_anything() -> None:
    eight = {"XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.training.mesh_losses", **eight)
    found = json.loads(done.stdout)
    # Losses of later steps also depend on the gradients and the optimizer's state.
    scanned = found[f"{ONE},1,True,None"]
    assert len(set(scanned)) == 3
    np.testing.assert_allclose(found[f"{EIGHT},1,True,None"], scanned, rtol=1e-5)
    expected = found[f"{ONE},1,False,None"]
    others = [key for key in found if key.endswith(",1,False,None")]
    assert len(others) == 11  # one device, and the ten meshes of eight
    for key in [*others, "(4, 1, 2),4,False,None"]:
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
    for factor in ("None", "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        expected = found[f"{ONE},1,False,{factor}"]
        for way in (f"{ONE},2", f"{ONE},4", f"{EIGHT},4"):
            key = f"{way},False,{factor}"
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
