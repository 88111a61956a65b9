"""Runs in stores: their processes, failures, starts and logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import logging
from etils.epath.backend import _FileSystemSpecBackend

from mtf.cli import status
from mtf.storage.remote import RemotePath
from mtf.t5x.logs import LOG_FILE, logged
from tests import small, stores
from tests.conversion import writers
from tests.jobs.test_dry_run import NETWORK, tiny
from tests.launch.test_local import died, ended, kill, start
from tests.storage.conftest import BUCKET, put


@pytest.mark.slow
def test_one_is_killed_and_the_run_goes_on(store: RemotePath, tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    options = ["local", "--processes", "2", "--devices-per-process", "1", "--"]
    settings = {"model_dir": f"{store}/run", "checkpoint.save.period": 2}
    process = start([*options, *small.arguments(text, train_steps=1000, **settings)], tmp_path)
    small.read_until(process.stdout, "step 5/")
    found = status.read_status(store / "run")
    assert found.state == "running"
    assert [each["condition"] for each in found.processes] == ["running", "running"]
    kill(process, 1)
    found = status.read_status(store / "run")
    assert found.state == "failed"
    assert re.fullmatch(died(1), str(found.reason))

    saved = found.checkpoint_step
    assert saved is not None and saved >= 2
    last = saved + 2
    process = start([*options, *small.arguments(text, train_steps=last, **settings)], tmp_path)
    output = ended(process)
    assert f"resuming from step {saved}" in output
    found = status.read_status(store / "run")
    assert (found.state, found.step, found.checkpoint_step) == ("finished", last, last)
    assert found.seconds_since_write is not None and found.seconds_since_write < 60
    lines = (store / "run/train/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, last + 1))


@pytest.mark.slow
def test_orbax_takes_a_store_that_fails_for_empty(
    store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = small.write_text(tmp_path)
    small.run(small.arguments(text, train_steps=4, model_dir=f"{store}/run"), tmp_path)
    before = [*(store / "run/checkpoints").glob("*")]
    monkeypatch.setattr(_FileSystemSpecBackend, "exists", lambda *_: False)
    output = small.run(["--from", f"{store}/run", "--set", "train_steps=9"], tmp_path, status=2)
    assert f"{store}/run/checkpoints: the store did not list all checkpoints" in output
    assert [*(store / "run/checkpoints").glob("*")] == before


@pytest.mark.slow
def test_a_store_that_fails_while_a_run_starts(
    store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsfs.retry import HttpError  # `filesystem` sets a variable before it imports gcsfs.

    def refuse(*_: object) -> bool:
        raise HttpError({"code": 429, "message": ""})

    monkeypatch.setattr(_FileSystemSpecBackend, "exists", refuse)
    start = small.arguments(small.write_text(tmp_path), model_dir=f"{store}/run")
    output = small.run(start, tmp_path, status=1)
    assert f"{store}/run cannot be read or written: the store" in output
    assert "cannot be reached: status 429." in output
    assert f"works again, run: python -m mtf.run --from {store}/run" in output


ASK = """
import time
from mtf.base.writing import write_failure
from mtf.storage import as_path
from mtf.storage.remote import filesystem

for _ in range(3):
    began = time.monotonic()
    try:
        filesystem("gs").info("bucket/run/config.json")
    except Exception as error:
        print(time.monotonic() - began < 5, write_failure(error, as_path("gs://bucket/run")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, words", [(503, "status 503"), ("reset_inside", "not completed"), ("hanging", "Timeout")]
)
def test_all_tries_are_made_once(
    monkeypatch: pytest.MonkeyPatch, kind: int | str, words: str
) -> None:
    """gcsfs waits for 17 s between its tries, and messages must come within a minute."""
    fault = stores.Fault(kind, every_request=True)
    with stores.gcs("bucket") as address, stores.faulty(address, fault) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy)
        stores.put_gcs(address, "bucket", "run/config.json", b"{}" * 100)
        command = [sys.executable, "-c", ASK]
        printed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    assert [line.partition(" ")[0] for line in printed] == ["False", "True", "True"]
    assert all("cannot be reached: " in line and words in line for line in printed)


def start_of(path: object) -> str:
    """The text of the start, or the problem, of a run from a checkpoint."""
    restore = "@mtf.checkpoints.RestoreCheckpointConfig"
    found = tiny(
        checkpoint__restore=f"{restore}(path={str(path)!r}, mode='specific', "
        "fallback_to_scratch=True)"
    )
    return "\n".join(found.problems) or found.rows["start"]


def test_a_start_checkpoint_in_a_store_is_checked(store: RemotePath, tmp_path: Path) -> None:
    local = writers.write_t5x(tmp_path / "model", writers.random_parameters(), step=7)
    put(local, store / "checkpoint_7")
    stores.SERVED.clear()
    number = len(writers.random_parameters()) + 1
    expected = f"{store / 'checkpoint_7'} (t5x-zarr, step 7): {number} tensors fit"
    assert start_of(store / "checkpoint_7").startswith(expected)
    size = 4 * NETWORK["vocab_size"] * NETWORK["emb_dim"]
    assert all(end - begin < size for _, begin, end in stores.SERVED), "no embedding is read"
    assert "checkpoint_8 does not exist" in start_of(store / "checkpoint_8")
    gone = str(store).replace(BUCKET, "no-such-bucket", 1)
    assert "no-such-bucket" in start_of(f"{gone}/checkpoint_7")


def test_the_log_of_t5x_is_in_the_store_at_the_end(store: RemotePath) -> None:
    run = store / "run"
    with logged(run):
        logging.info("step 3 of 5")
        logging.info("[3] collection=train loss=2.5, accuracy=0.5")
    lines = (run / LOG_FILE).read_text(encoding="utf-8").splitlines()
    assert [line.partition("INFO ")[2] for line in lines] == [
        "step 3 of 5",
        "[3] collection=train loss=2.5, accuracy=0.5",
    ]
