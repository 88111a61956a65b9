"""`python -m mtf status`: what it shows of runs that run, end, or were killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mtf.checkpoints.steps import owing
from mtf.cli import status
from tests import small

NOW = 1_800_000_000.0


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 1,000 steps from step 100, with statistics of step 300 that are 20 seconds old."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    run = tmp_path / "run"
    (run / "train").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "config.txt").write_text(
        "model.network.num_heads = 2\ntrain_steps = 1100\nbatch_size = 8\n"
        "checkpoint.restore.step = 100\nmodel_dir = 'run'\n"
    )
    metrics = {"loss_per_target_token": 2.5, "accuracy": 0.25}
    metrics |= {"timing/steps_per_second": 4.0, "timing/tokens_per_second": 4096.0}
    lines = [json.dumps({"step": step, **metrics}) for step in (200, 300)]
    _write(run / "train" / "metrics.jsonl", "\n".join(lines) + '\n{"step": 400, "lo', age=20)
    return run


def _write(file: Path, text: str, age: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (NOW - age, NOW - age))


def _save(run: Path, step: int, age: float, metrics: dict[str, float] | None = None) -> None:
    folder = run / "checkpoints" / f"checkpoint_{step}"
    commit = {"commit_timestamp_nsecs": (NOW - age) * 1e9}
    _write(folder / "_CHECKPOINT_METADATA", json.dumps(commit), age)
    _write(folder / "metrics" / "metrics", json.dumps(metrics or {}), age)
    os.utime(folder, (NOW - age, NOW - age))


def _lock(run: Path, pid: int, host: str = "", command: str = "python -m mtf.run r") -> None:
    holder = {"host": host or socket.gethostname(), "pid": pid, "since": "2027", "command": command}
    _write(run / ".lock", json.dumps(holder), age=5)


def _lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    """The lines of the command's output by their first word; fails unless its status is 0."""
    capsys.readouterr()
    assert status.main([str(each) for each in arguments]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return {line[:13].strip(): line[13:].strip() for line in lines}


def _command_of_this_process() -> str:
    arguments = Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")[:-1]
    return shlex.join(arguments)


def test_a_run_of_t5x_has_its_checkpoints_in_the_run_directory(run_dir: Path) -> None:
    (run_dir / "t5x_config.json").write_text("{}")
    folder = run_dir / "checkpoint_350"
    commit = {"commit_timestamp_nsecs": (NOW - 60) * 1e9}
    _write(folder / "_CHECKPOINT_METADATA", json.dumps(commit), age=60)
    results = run_dir / "inference_eval" / "task-metrics.jsonl"
    _write(results, '{"step": 300, "accuracy": 12.5}', age=60)
    found = status.read_status(run_dir)
    assert (found.engine, found.step, found.loss) == ("t5x", 350, 2.5)
    assert (found.checkpoint, found.checkpoint_age_seconds) == (str(folder), 60)
    assert found.evaluations == {"inference_eval/task": {"step": 300, "accuracy": 12.5}}
    assert f"python -m mtf.run --from {run_dir} --engine t5x" in status.as_text(found)


def test_running(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _lock(run_dir, os.getpid(), command=_command_of_this_process())
    _save(run_dir, 200, age=600)
    _save(run_dir, 300, age=7200)
    lines = _lines(capsys, run_dir)
    assert (lines["state"], lines["written"]) == ("running", "5 s ago")
    assert lines["process"] == f"{os.getpid()} on {socket.gethostname()}, since 2027"
    assert lines["step"] == "300 of 1,100 (20.0%)"
    assert lines["speed"] == "4 steps/s, 4.1k tokens/s"
    # 800 steps at 4 a second, less 20 seconds since the statistics.
    assert lines["ETA"] == "3:00"
    assert lines["loss"] == "2.5000, accuracy 0.250"
    assert lines["checkpoint"] == "step 300, 2 h ago"
    assert lines[""] == f"{run_dir}/checkpoints/checkpoint_300"
    assert "to resume" not in lines


def _record(
    run: Path,
    index: int,
    count: int = 1,
    *,
    host: str = "",
    pid: int = 0,
    age: float = 5,
    **more: Any,
) -> None:
    """Writes what a process does, as it was so many seconds ago."""
    state = {"index": index, "count": count, "host": host or socket.gethostname()}
    state |= {"pid": pid or os.getpid(), "devices": ["cpu:0"], "phase": "training", "step": 310}
    state |= {"progress": NOW - age - 7, "time": NOW - age, "period": 10.0, "ended": False, **more}
    _write(run / "processes" / f"{index}.json", json.dumps(state), age)


def test_what_the_processes_do(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _lock(run_dir, os.getpid(), command=_command_of_this_process())
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    _record(run_dir, 0, 4)
    _record(run_dir, 1, 4, host="elsewhere", pid=70, age=600, phase="reading data")
    _record(run_dir, 2, 4, pid=done.pid, age=90, phase="saving")
    _record(run_dir, 3, 4, host="elsewhere", pid=71, age=30)
    _record(run_dir, 4, 5)  # of an earlier run
    lines = _lines(capsys, run_dir)
    here = socket.gethostname()
    assert lines["processes"] == "2 running, 1 silent, 1 dead"
    assert lines["0"] == f"training, step 310, 12 s ago ({here}, process id {os.getpid()})"
    assert lines["1"] == (
        "silent, last heartbeat 10 min ago; before: reading data, step 310, 10 min ago "
        "(elsewhere, process id 70)"
    )
    assert lines["2"].startswith("dead, last heartbeat 90 s ago; before: saving, step 310, 97 s")
    assert lines["3"].startswith("training, step 310, 37 s ago (elsewhere")
    assert "4" not in lines
    # In a table, and of many processes, only those that do not answer are shown.
    assert status.main([str(run_dir), str(run_dir)]) == 0
    assert "running, 2 of 4 processes silent or dead" in capsys.readouterr().out
    for index in (0, *range(3, 20)):
        _record(run_dir, index, 20)
    lines = _lines(capsys, run_dir)
    assert lines["processes"] == "18 running, 1 silent, 1 dead"
    assert {"1", "2"} <= lines.keys()
    assert not {"0", "3"} & lines.keys()


def test_another_host_writes(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _lock(run_dir, 1, host="elsewhere")
    _record(run_dir, 0, host="elsewhere", pid=1)
    lines = _lines(capsys, run_dir)
    assert (lines["state"], lines["process"]) == ("running", "1 on elsewhere, since 2027")
    _record(run_dir, 0, host="elsewhere", pid=1, age=100)
    lines = _lines(capsys, run_dir)
    assert lines["state"].startswith("on another host")
    assert lines["processes"] == "1 silent"
    end = {"how": "failed", "reason": "Process 1 (host b, process id 7) died.", "time": NOW}
    _write(run_dir / "end.json", json.dumps(end), age=30)
    assert _lines(capsys, run_dir)["state"].startswith("failed: Process 1 (host b, process id 7)")


@pytest.mark.parametrize("reused", [False, True])
def test_killed(run_dir: Path, capsys: pytest.CaptureFixture[str], reused: bool) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    pid = os.getpid() if reused else done.pid
    _lock(run_dir, pid)
    _save(run_dir, 200, age=60)
    lines = _lines(capsys, run_dir)
    assert lines["state"] == "not running"
    assert lines["process"].startswith(f"{pid} on ")
    assert lines["process"].endswith("; it was killed or crashed")
    assert "ETA" not in lines
    assert lines["to resume"] == f"python -m mtf.run --from {run_dir}"


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ({"how": "finished"}, "finished"),
        ({"how": "stopped", "reason": "SIGTERM"}, "stopped by SIGTERM"),
        ({"how": "failed", "reason": "RunError: no space"}, "failed: RunError: no space"),
    ],
)
def test_how_it_ended(
    run_dir: Path, capsys: pytest.CaptureFixture[str], end: dict[str, Any], state: str
) -> None:
    _write(run_dir / "end.json", json.dumps({"time": NOW, **end}), age=30)
    lines = _lines(capsys, run_dir)
    assert (lines["state"], lines["written"]) == (state, "20 s ago")
    assert ("to resume" in lines) == (state != "finished")


def test_a_run_without_a_record_of_its_end(run_dir: Path) -> None:
    """It was written by an earlier version."""
    assert status.read_status(run_dir).state == "not running"
    _save(run_dir, 1100, age=1, metrics=owing(["training_eval"]))
    assert status.read_status(run_dir).state == "not running"
    _save(run_dir, 1100, age=1)
    assert status.read_status(run_dir).state == "finished"
    assert status.read_status(run_dir).step == 1100


def test_evaluations(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, line in (
        ("training_eval/held_out", {"step": 300, "loss_per_target_token": None, "accuracy": 0.5}),
        ("inference_eval/rte", {"step": 250, "accuracy": 61.25, "f1": 59.0}),
    ):
        _write(run_dir / place / "metrics.jsonl", json.dumps(line) + "\n", age=40)
    assert status.main([str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "training_eval/held_out: loss not finite  accuracy 0.5 (step 300)" in out
    assert "inference_eval/rte: accuracy 61.25  f1 59 (step 250)" in out


def test_several_give_a_table(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run_dir.parent / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert status.main([str(run_dir), str(other)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    columns = ["run", "state", "step", "speed", "ETA", "loss", "checkpoint", "written"]
    assert header.split() == columns
    assert first.startswith(str(run_dir))
    assert "300 of 1,100 (20.0%)  4 steps/s, 4.1k tokens/s       2.5000, accuracy 0.250" in first
    assert second.startswith(str(other))


def test_json_is_an_object_on_a_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(run_dir, 200, age=60)
    assert status.main([str(run_dir), str(run_dir), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2
    assert lines[0]["run_dir"] == str(run_dir)
    assert lines[0]["checkpoint_step"] == 200
    assert lines[0]["checkpoint_age_seconds"] == pytest.approx(60, abs=1e-3)
    assert lines[0]["tokens_per_second"] == 4096
    assert lines[0]["eta_seconds"] is None


def test_no_run_directory(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = run_dir.parent
    for path, says in (
        (
            runs,
            f"{runs} is not a run directory: it contains no config.json. Did you mean {run_dir}?",
        ),
        (run_dir / "train", f"Did you mean {run_dir}?"),
        (runs / "nothing", f"{runs}/nothing does not exist; expected the directory of a run"),
        (run_dir / "config.txt", "config.txt is a file; expected the directory of a run"),
    ):
        assert status.main([str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert says in captured.err
    assert status.main([str(run_dir), str(runs / "nothing")]) == 2
    assert capsys.readouterr().out == ""


def test_outputs_of_evaluations_beside_runs_are_left_out(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = run_dir.parent / "evaluate-20260101"
    evaluation.mkdir()
    assert status.main([str(evaluation), str(run_dir), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["run_dir"] == str(run_dir)
    assert captured.err == f"skipped paths that are not run directories: {evaluation}\n"
    assert status.main([str(evaluation), str(run_dir / "train")]) == 2


def test_a_real_run(tmp_path: Path) -> None:
    """It is watched from outside while it runs, after SIGTERM and at its end."""
    arguments = small.arguments(
        small.write_text(tmp_path), train_steps=9999, model_dir="run", checkpoint__save__period=None
    )

    def read() -> status.Status:
        return status.read_status(tmp_path / "run")

    with small.start(arguments, tmp_path) as process:
        small.read_until(process.stdout, "step 20/")
        running = read()
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert (running.state, running.process["pid"]) == ("running", process.pid)
    assert running.step >= 20
    assert running.train_steps == 9999
    assert running.eta_seconds is not None and running.steps_per_second is not None
    assert running.tokens_per_second == pytest.approx(running.steps_per_second * 8 * 48)

    stopped = read()
    assert (stopped.state, stopped.reason) == ("stopped", "SIGTERM")
    assert stopped.checkpoint_step == stopped.step == small.steps(tmp_path / "run")[-1]

    last = stopped.step + 3
    small.run(["--from", "run", "--set", f"train_steps={last}"], tmp_path)
    finished = read()
    assert (finished.state, finished.step, finished.process) == ("finished", last, {})
    metrics = small.read_metrics(tmp_path / "run")[-1]
    assert finished.loss == metrics["loss_per_target_token"]


def test_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from mtf.cli.run import main

    recipe = "tests.config.example.small"
    with pytest.raises(RuntimeError, match="the loss is lost"):
        main([recipe, "--set", "model_dir=run", "fail=inside"])
    found = status.read_status("run")
    assert (found.state, found.reason) == ("failed", "RuntimeError: the loss is lost")
    assert main([recipe, "--set", "model_dir=run", "fail=user"]) == 2
    assert status.read_status("run").reason == "RuntimeError: the loss is lost"
    assert main([recipe, "--set", "model_dir=run"]) == 0
    assert status.read_status("run").state == "not running"
