"""Several processes run in a directory in a store: a run, a kill and a resume."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from mtf.cli import status
from mtf.storage.remote import RemotePath
from tests import small
from tests.launch.test_local import _pid_of as pid_of
from tests.launch.test_local import start

pytestmark = pytest.mark.slow


def test_one_is_killed_and_the_run_goes_on(store: RemotePath, tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    options = ["local", "--processes", "2", "--devices-per-process", "1", "--"]
    settings = {"model_dir": f"{store}/run", "checkpoint.save.period": 2}
    process = start([*options, *small.arguments(text, train_steps=1000, **settings)], tmp_path)
    small.read_until(process.stdout, "step 5/")
    found = status.read_status(store / "run")
    assert found.state == "running"
    assert [each["condition"] for each in found.processes] == ["running", "running"]
    os.kill(pid_of(process.pid, 1), signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 137
    died = r"Process 1 \(host .*, process id \d+\) died\."
    assert re.search(f"error: {died}", output)
    found = status.read_status(store / "run")
    assert found.state == "failed"
    assert re.fullmatch(died, str(found.reason))

    saved = found.checkpoint_step
    assert saved is not None and saved >= 2
    last = saved + 2
    process = start([*options, *small.arguments(text, train_steps=last, **settings)], tmp_path)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert f"resuming from step {saved}" in output
    found = status.read_status(store / "run")
    assert (found.state, found.step, found.checkpoint_step) == ("finished", last, last)
    assert found.seconds_since_write is not None and found.seconds_since_write < 60
    lines = (store / "run/train/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, last + 1))
