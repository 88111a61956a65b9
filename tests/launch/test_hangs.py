"""Runs of several processes that hang, are slow, or are on two nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtf.cli import status
from mtf.cli.launch.local import _free_port
from tests import small
from tests.launch.test_local import ended, losses, start

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
    ended(process)
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


FOLDER = Path(__file__).parents[2] / "docs" / "launch"

RECIPE = """
import recipes


def tiny():
    config = recipes.pretrain_text(train_steps=2)
    config.model.network.num_encoder_layers = config.model.network.num_decoder_layers = 1
    config.batch_size = 4
    return config
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu_cluster", "kubernetes", "ssh_hosts"])
def test_the_command_trains_on_two_nodes(name: str, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")
    task = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    script = re.sub(r":61438\b", f":{_free_port()}", task["run"])
    python = tmp_path / "mtf" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "my.py").write_text(RECIPE)
    environment = {
        **small.environment_variables(),
        **task["envs"],
        **{"HOME": str(tmp_path), "RECIPE": "my.py:tiny", "MODEL_DIR": "run"},
        **{"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": ""},
        **{"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_NUM_NODES": "2"},
    }
    processes = [
        subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**environment, "SKYPILOT_NODE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "4 × cpu" in outputs[0]
    assert os.path.exists(tmp_path / "run" / "end.json")
