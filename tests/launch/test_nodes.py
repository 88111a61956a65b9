"""The command of docs/launch's files joins the processes of two nodes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mtf.cli.launch.local import _free_port
from tests import small

FOLDER = Path(__file__).parents[2] / "docs" / "launch"

RECIPE = """
import recipes


def tiny():
    config = recipes.quickstart(train_steps=2)
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
