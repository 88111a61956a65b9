"""A cache says who writes it and how far it is, until it is complete; a hang ends the command."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from mtf.base import signals
from mtf.base.writing import JOB_FILE
from mtf.cli import status
from mtf.data.cache.recording import recorded
from tests import small

# Record 150 waits as long as there is a file `blocked`.
MODULE = """
import pathlib, time
from mtf.data import tasks

def ask(row):
    while row["q"] == "question 150" and pathlib.Path("blocked").exists():
        time.sleep(0.05)
    return {"inputs": row["q"], "targets": "yes"}

tasks.register("slow", tasks.FileSource({"train": "rows.jsonl"}), ask)
"""


def write_task(folder: Path) -> None:
    (folder / "slow_tasks.py").write_text(MODULE)
    rows = ({"q": f"question {i}"} for i in range(200))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def command(output: str, *more: str, launch: tuple[str, ...] = ("mtf.cache",)) -> list[str]:
    options = ["slow", "--module", "slow_tasks", "--vocabulary", "byt5", "--num-shards", "2"]
    return ["-m", *launch, *options, "--output", output, *more]


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What mtf status prints of a cache: the first word of a line → the others."""
    capsys.readouterr()
    assert status.main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return {line[:13].strip(): line[13:].strip() for line in lines}


@pytest.mark.parametrize("num_workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_record_that_never_ends(
    tmp_path: Path, num_workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path)
    (tmp_path / "blocked").touch()
    options = ["--num-workers", num_workers, "--hang-seconds", "2"]
    process = small.start_python(
        *command("cache", *options), cwd=tmp_path, stderr=subprocess.STDOUT
    )
    while not (tmp_path / "cache" / "processes" / "0.json").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    assert status.read_status(tmp_path / "cache").state == "running"
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1, output
    assert (
        "failed: no progress for 2 s (writing examples, 0/1 tasks, 100 of 200 records; " in output
    )
    assert "--hang-seconds is 2). Its output contains the stack traces of all threads." in output
    assert ("slow_tasks.py" in output) == (num_workers == "1")

    lines = shown(tmp_path / "cache", capsys)
    assert lines["state"].startswith("failed: Process 0 (host ")
    assert "100 of 200 records" in lines["0"]
    assert lines["tasks"] == "0 complete, 1 incomplete"
    assert lines["to resume"] == "run the same command again"

    (tmp_path / "blocked").unlink()
    assert "200 examples" in small.python(*command("cache", *options), cwd=tmp_path).stdout
    lines = shown(tmp_path / "cache", capsys)
    assert lines["state"] == "finished"
    assert lines["tasks"] == "1 complete, 0 incomplete"
    options = ["--num-workers", "1", "--hang-seconds", "0"]
    small.python(*command("other", *options), cwd=tmp_path)
    assert small.contents(tmp_path / "cache", JOB_FILE) == small.contents(
        tmp_path / "other", JOB_FILE
    )
    assert not (tmp_path / "cache" / "processes").exists()


def test_a_signal_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(signals.Stopped), recorded(tmp_path, 0, 1, None):
        raise signals.Stopped(15)
    found = status.read_status(tmp_path)
    assert (found.state, found.reason) == ("stopped", "SIGTERM")
