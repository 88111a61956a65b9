"""SkyPilot and xpk accept the files of docs/launch; CI runs this beside each, without `mtf`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "launch"
# File → SkyPilot's cloud, accelerators, and number of nodes; a TPU pod is one node of four hosts.
TASKS = {
    "tpu_pod": ("GCP", {"tpu-v4-32": 1}, 1),
    "gpu_cluster": ("GCP", {"H100": 8}, 2),
    "kubernetes": ("Kubernetes", {"H100": 8}, 2),
    "ssh_hosts": ("SSH", {"A100": 8}, 2),
}


def test_all_files_are_checked() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {*TASKS, "ssh_node_pools", "jobset"}


@pytest.mark.parametrize("name", TASKS)
def test_skypilot_reads_the_task(name: str) -> None:
    sky = pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot")
    task = sky.Task.from_yaml(str(FOLDER / f"{name}.yaml"))
    (resources,) = task.resources
    found = str(resources.cloud), resources.accelerators, task.num_nodes
    assert found == TASKS[name]
    # A run that a signal stopped is started again; a wrong config only a few times.
    assert resources.job_recovery["recover_on_exit_codes"] == [143]
    assert task.envs["MTF_STOPPED_FAILS"] == "1"
    assert task.setup and "-m mtf.run" in task.run


def test_skypilot_reads_the_list_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot")
    from sky.ssh_node_pools import utils

    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text("a key")
    monkeypatch.setenv("HOME", str(tmp_path))
    pools = utils.load_ssh_targets(str(FOLDER / "ssh_node_pools.yaml"))
    hosts = utils.prepare_hosts_info("my-gpus", pools["my-gpus"])
    assert [(host["ip"], host["user"]) for host in hosts] == [
        ("10.0.0.1", "ubuntu"),
        ("10.0.0.2", "ubuntu"),
    ]
    assert "infra: ssh/my-gpus" in (FOLDER / "ssh_hosts.yaml").read_text()


def test_xpk_reads_the_command_of_the_jobset() -> None:
    core = pytest.importorskip("xpk.parser.core", reason="needs xpk: pip install xpk")
    parser = argparse.ArgumentParser()
    core.set_parser(parser)
    text = (FOLDER / "jobset.sh").read_text().replace("\\\n", "")
    words = shlex.split(text, comments=True)
    assert words[0] == "xpk"
    options: Any = parser.parse_args(words[1:])
    assert (options.tpu_type, options.spot, options.num_slices) == ("v4-32", True, 1)
    assert options.env == ["MTF_STOPPED_FAILS=1"] and int(options.max_restarts) > 0
    # By default, xpk restarts on 42 and 127 to 255; 1 is a process that failed or hung.
    assert options.restart_on_exit_codes == "1"
    assert int(options.termination_grace_period_seconds) >= 60
    assert shlex.split(options.command)[:3] == ["python", "-m", "mtf.run"]
