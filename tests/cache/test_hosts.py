"""Several hosts write one cache, each a share of its shards."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from mtf.base.writing import JOB_FILE
from tests import small
from tests.launch.test_local import pid_of, start


def arguments(folder: Path, output: str, num_rows: int = 60, num_shards: int = 3) -> list[str]:
    """The arguments of mtf.cache for two splits of a file."""
    file = folder / "rows.jsonl"
    rows = ({"q": f"question {i}", "a": f"answer {i * i}"} for i in range(num_rows))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = ["files", "--files", f"train={file}", f"validation={file}", "--inputs", "q"]
    options += ["--targets", "a", "--vocabulary", "byt5", "--num-workers", "1"]
    return [*options, "--num-shards", str(num_shards), "--output", output]


def run(folder: Path, *command: str) -> str:
    """Runs mtf.cache alone; returns what it printed."""
    return small.python("-m", "mtf.cache", *command, cwd=folder).stdout


def test_three_processes_write_the_cache_of_one(tmp_path: Path) -> None:
    one = run(tmp_path, *arguments(tmp_path, "one"))
    options = ["local", "--processes", "3", "--", "mtf.cache"]
    process = start([*options, *arguments(tmp_path, "three")], tmp_path)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert small.contents(tmp_path / "three", JOB_FILE) == small.contents(
        tmp_path / "one", JOB_FILE
    )
    assert "120 examples from 120 records" in one
    assert output.count("120 examples from 120 records") == 1


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_finished_shards_are_kept(tmp_path: Path) -> None:
    command = arguments(tmp_path, "cache", 40_000, 16)
    options = ["local", "--processes", "2", "--", "mtf.cache"]
    process = start([*options, *command], tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cache/*.incomplete/*.array_record")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.kill(pid_of(process.pid, 1), signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 137
    assert re.search(r"error: Process 1 \(host .*, process id \d+\) died\.", output)
    (incomplete,) = tmp_path.glob("cache/*.incomplete")
    kept = {file.name: file.stat().st_mtime_ns for file in incomplete.glob("*.array_record")}

    process = start([*options, *command], tmp_path)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    (task,) = tmp_path.glob("cache/*/info.json")
    now = {file.name: file.stat().st_mtime_ns for file in task.parent.glob("*.array_record")}
    assert len(now) == 32
    # Each process may have written a file without its description.
    assert len(kept.items() & now.items()) >= len(kept) - 2
    run(tmp_path, *arguments(tmp_path, "one", 40_000, 16))
    assert small.contents(tmp_path / "cache", JOB_FILE) == small.contents(
        tmp_path / "one", JOB_FILE
    )


def test_processes_that_would_write_something_else(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        small.start_python(
            *("-m", "mtf.cache", *arguments(tmp_path, "cache")),
            *("--max-rows", str(20 + index), "--coordinator-address", address),
            *("--process-count", "2", "--process-index", str(index)),
            cwd=tmp_path,
        )
        for index in range(2)
    ]
    for process in processes:
        error = process.communicate(timeout=120)[1]
        assert process.returncode == 2, error
        assert "differ in the shards to write" in error
    assert not (tmp_path / "cache").exists()
