"""Processes find each other, record what they do, and end if they make no progress."""

from __future__ import annotations

import argparse
import os
import re
import threading
import time
from pathlib import Path

import pytest

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.base.processes import heartbeat
from mtf.base.processes.heartbeat import READING, TRAINING, Heartbeat
from mtf.base.processes.process_info import add_process_options, find_processes
from mtf.base.processes.records import read_states
from mtf.base.run_end import read_end
from tests.processes import start_processes


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a heartbeat would have ended this process."""
    event = threading.Event()

    def end_now(status: int) -> None:
        assert status == 1
        event.set()

    monkeypatch.setattr(signals, "end_now", end_now)
    return event


def states(run_dir: Path) -> list[tuple[int, str, bool]]:
    return [(each.index, each.doing, each.ended) for each in read_states(run_dir)]


def test_what_it_does_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PERIOD", 0.1)
    for index in (1, 0):
        with Heartbeat(index, 2, None) as beats:
            beats.record_in(tmp_path)
            assert (index, "starting", False) in states(tmp_path)
            beats.beat(TRAINING, 1_700)
            deadline = time.monotonic() + 20
            while (index, "training, step 1,700", False) not in states(tmp_path):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert (index, "training, step 1,700", True) in states(tmp_path)
    assert [each.index for each in read_states(tmp_path)] == [0, 1]
    # The next run has one process.
    with Heartbeat(0, 1) as beats:
        beats.record_in(tmp_path)
        assert states(tmp_path) == [(0, "starting", False)]


def test_a_hang(tmp_path: Path, ended: threading.Event, capfd: pytest.CaptureFixture[str]) -> None:
    with Heartbeat(0, 1, hang_seconds=0.4) as beats:
        beats.record_in(tmp_path)
        beats.beat(READING, 8)
        assert ended.wait(30)
    stacks, error, end_of_message = capfd.readouterr().err.partition("error: ")
    assert "test_heartbeat.py" in stacks
    said = error + end_of_message
    assert re.fullmatch(
        rf"error: Process 0 \(host .*, process id {os.getpid()}\) failed: no progress for 0 s "
        r"\(reading data, step 8; trainer.hang_seconds is 0.4\). Its output contains the "
        r"stack traces of all threads.\n",
        said,
    )
    end = read_end(tmp_path)
    assert end is not None
    assert (end.how, f"error: {end.reason}\n") == ("failed", said)


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError), Heartbeat() as beats, beats.recorded_in(tmp_path):
        assert states(tmp_path) == [(0, "starting", False)]
        raise UserError("the input is wrong")
    assert not list(tmp_path.iterdir())


def test_what_is_slow_is_no_hang(ended: threading.Event) -> None:
    with Heartbeat(hang_seconds=1.5) as beats:
        for step in range(10):
            beats.beat(READING, step)
            time.sleep(0.2)
        # Saving takes longer than a step.
        beats.beat("saving", 8)
        time.sleep(2.5)
        assert not ended.is_set()
        beats.beat(READING, 9)
        assert ended.wait(30)


def test_a_process_in_a_step_waits_for_one_that_saves(ended: threading.Event) -> None:
    with Heartbeat(0, 2, hang_seconds=0.5) as beats:
        beats.beat(TRAINING, 5)
        assert not ended.wait(1.2)
        assert ended.wait(30)


def join(count: int, *whats: str) -> list[tuple[int, str]]:
    """Returns the exit status of each process, and what it printed."""
    started = time.monotonic()
    processes = start_processes("tests.processes.one_of_several", count, *whats)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert time.monotonic() - started < 40
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_get_what_the_first_broadcasts(count: int) -> None:
    for status, text in join(count, "leave"):
        assert status == 0, text
        assert "joined, number 0\nleft\n" in text
        assert "error" not in text


@pytest.mark.slow
def test_one_runs_something_else() -> None:
    for status, text in join(3, "leave", "differ", "leave"):
        assert status == 2, text
        assert "error: Process 1 (host" in text
        assert "differ in the config:\n  process 0: b = 2\n  process 1: b = 3\n" in text
        assert "joined" not in text


@pytest.mark.parametrize(
    ("dead", "others"), [(1, (0, 2)), pytest.param(0, (1, 2), marks=pytest.mark.slow)]
)
def test_one_dies(dead: int, others: tuple[int, ...]) -> None:
    whats = ["wait"] * 3
    whats[dead] = "die"
    results = join(3, *whats)
    assert results[dead][0] == -9
    for other in others:
        status, text = results[other]
        assert status == 1, text
        assert f"error: Process {dead} (host" in text
        assert "died." in text


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 2])
def test_one_fails(failing: int) -> None:
    whats = ["wait"] * 3
    whats[failing] = "fail"
    for process, (status, text) in enumerate(join(3, *whats)):
        assert status == 1, text
        if process != failing:
            assert f"error: Process {failing} (host" in text
            assert "died. See its output for the reason." in text
        else:
            assert "error: the disk is full" in text


@pytest.mark.slow
@pytest.mark.parametrize("whats", [("leave", "leave", "absent"), ("absent", "leave")])
def test_one_never_comes(whats: tuple[str, ...]) -> None:
    for what, (status, text) in zip(whats, join(len(whats), *whats), strict=True):
        if what != "absent":
            assert status == 2, text
            assert "error: Waited 5 s, but not all processes of this run joined (the test" in text


SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
ALL_GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_GPUS_ON_NODE": "8"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
TPU = {"TPU_WORKER_HOSTNAMES": "w-0.svc,w-1.svc", "TPU_WORKER_ID": "1"}
LAUNCHED = {
    "MTF_COORDINATOR_ADDRESS": "host:700",
    "MTF_PROCESS_COUNT": "3",
    "MTF_PROCESS_INDEX": "2",
}


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    return parser.parse_args(arguments)


def explicit(address: str, count: int, index: int) -> dict[str, object]:
    """Arguments for `jax.distributed.initialize` that leave nothing to detect."""
    found = {"coordinator_address": address, "num_processes": count, "process_id": index}
    return {**found, "cluster_detection_method": "deactivate"}


@pytest.mark.parametrize(
    ("environ", "source", "arguments"),
    [
        (SLURM, "SLURM", {"num_processes": 4, "local_device_ids": None}),
        (OPEN_MPI, "Open MPI", {"local_device_ids": None}),
        (TPU, "TPU_WORKER_HOSTNAMES", {}),
        (LAUNCHED, "MTF_COORDINATOR_ADDRESS", explicit("host:700", 3, 2)),
        ({**SLURM, **LAUNCHED}, "MTF_COORDINATOR_ADDRESS", explicit("host:700", 3, 2)),
    ],
)
def test_environments(environ: dict[str, str], source: str, arguments: dict[str, object]) -> None:
    found = find_processes(environ)
    assert found is not None
    assert (found.found_in, found.arguments) == (source, arguments)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({**SLURM, **ALL_GPUS}, [4, 5, 6, 7]),
        (
            {**SLURM, **ALL_GPUS, "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_LOCALID": "0"},
            list(range(8)),
        ),
        # Two GPUs per task, by --gpus-per-task, of the eight of this node.
        ({**SLURM, **ALL_GPUS, "CUDA_VISIBLE_DEVICES": "6,7"}, [0, 1]),
        # SLURM 22.05 sets no CUDA_VISIBLE_DEVICES with --gpu-bind=none.
        ({**SLURM, "SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_TASK": "1"}, [1]),
        ({**OPEN_MPI, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),
    ],
)
def test_gpus(environ: dict[str, str], gpus: list[int]) -> None:
    found = find_processes(environ)
    assert found is not None
    assert found.arguments["local_device_ids"] == gpus


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        # A shell in an allocation of 4 tasks is one process.
        {name: value for name, value in SLURM.items() if "STEP" not in name},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_a_process_alone(environ: dict[str, str]) -> None:
    assert find_processes(environ) is None


def test_options_come_first() -> None:
    given = ["--coordinator-address", "[fe80::1]:500", "--process-count", "2"]
    found = find_processes(SLURM, options(*given, "--process-index", "1"))
    assert found is not None
    assert found.arguments == explicit("[fe80::1]:500", 2, 1)
    assert find_processes(SLURM, options("--process-count", "1")) is None
    found = find_processes({}, options("--coordinator-address", "auto"))
    assert found is not None
    assert found.arguments == {}


@pytest.mark.parametrize(
    ("environ", "given", "message"),
    [
        ({}, ["--coordinator-address=host:500"], "--process-count is missing, --process-index"),
        (LAUNCHED | {"MTF_COORDINATOR_ADDRESS": "host"}, [], "ADDRESS is host, .*node001:12345"),
        (LAUNCHED | {"MTF_COORDINATOR_ADDRESS": "host:99999"}, [], "ADDRESS is host:99999"),
        (LAUNCHED | {"MTF_PROCESS_INDEX": "3"}, [], "INDEX is 3.*less than the number of proc"),
        (LAUNCHED | {"MTF_PROCESS_COUNT": "x"}, [], "MTF_PROCESS_COUNT is x"),
        (SLURM, ["--process-count", "two"], "--process-count is two, --process-index is missing"),
    ],
)
def test_mistakes(environ: dict[str, str], given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_processes(environ, options(*given))
