"""`mtf launch slurm` submits a readable script; runs find each other under SLURM and Open MPI."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.cli.launch import slurm as slurm_target
from mtf.cli.launch.command import main
from tests import small
from tests.launch.test_local import losses

COMMAND = ["--", "recipes.quickstart", "--set", "train_steps=3"]


def lines_of(options: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["slurm", "--dry-run", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "2", "--gpus-per-node", "8", "--time", "1-00:00:00", "--account", "lab"]
    lines = lines_of([*options, "--sbatch", "constraint=h100", *COMMAND, "model_dir=a b"], capsys)
    directives = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert directives == {
        *("nodes=2", "gpus-per-node=8", "ntasks-per-node=8", "time=1-00:00:00", "account=lab"),
        *("job-name=quickstart", "output=slurm/quickstart-%j.log", "signal=B:USR1@300"),
        *("constraint=h100", "requeue", "open-mode=append"),
    }
    assert f"cd {shlex.quote(os.getcwd())}" in lines
    (srun,) = [shlex.split(line) for line in lines if line.startswith("srun ")]
    expected = ["recipes.quickstart", "--set", "train_steps=3", "model_dir=a b"]
    assert srun[2:] == [sys.executable, "-m", "mtf.run", *expected, "&"]


def test_a_run_without_a_directory_is_not_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(["--job-name", "mine", "--time", "1:00:00", *COMMAND], capsys)
    assert not [line for line in lines if "requeue" in line]
    assert {"#SBATCH --output=slurm/mine-%j.log", "#SBATCH --signal=TERM@300"} <= set(lines)
    assert shlex.split(lines[-1])[:2] == ["exec", "srun"]


# Stands for a run of SLURM's step 0; the script's signal reaches it through `scancel`.
SRUN = """\
trap 'exit $STATUS' TERM
echo $$ >step; echo "cpus $SRUN_CPUS_PER_TASK, fails $MTF_STOPPED_FAILS"
while :; do sleep 0.1; done"""


@pytest.mark.parametrize(
    ("signalled", "status", "requeued"),
    [("script", 143, True), ("script", 0, False), ("script", 1, False), ("step", 143, False)],
)
def test_a_run_whose_time_is_up_is_queued_again(
    signalled: str,
    status: int,
    requeued: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cancel, control = 'kill -TERM "$(cat step)"; echo "$@" >canceled', 'echo "$@" >requeued'
    for name, text in {"srun": SRUN, "scancel": cancel, "scontrol": control}.items():
        Path(name).write_text(f"#!/bin/sh\n{text}\n")
        Path(name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "3", "STATUS": str(status)}
    variables["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    options = ["--cpus-per-task", "3", "--time", "1:00:00", *COMMAND, "model_dir=run"]
    script = "\n".join(lines_of(options, capsys))
    job = subprocess.Popen(
        ["bash", "-c", script], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "cpus 3, fails 1\n"
    process = job.pid if signalled == "script" else int(Path("step").read_text())
    os.kill(process, signal.SIGUSR1 if signalled == "script" else signal.SIGTERM)
    assert job.wait(20) == status
    assert Path("canceled").exists() == (signalled == "script")
    assert Path("requeued").exists() == requeued
    if requeued:
        assert Path("requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "0"], "--nodes is 0; expected at least 1"),
        (["--account", "a\n#SBATCH --uid=0"], "expected NAME or NAME=VALUE of an sbatch option"),
        (["--sbatch", "export=TOKEN=hunter2"], "the script would show the values of variables"),
        (["--sbatch", "a b=1"], "--sbatch a b=1: expected NAME or NAME=VALUE"),
    ],
)
def test_mistakes(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--dry-run", *options, *COMMAND]) == 2
    assert message in capsys.readouterr().err


def test_sbatch_is_missing_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["slurm", *COMMAND]) == 2
    assert "sbatch was not found" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1\n")
    program.chmod(0o755)
    assert main(["slurm", *COMMAND, "batch_sise=3"]) == 2
    said = "error: batch_sise=3: Train has no field batch_sise. Did you mean batch_size?\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "slurm").exists()
    assert main(["slurm", *COMMAND]) == 1
    assert "sbatch refused slurm/quickstart.sh: sbatch: error: invalid" in capsys.readouterr().err


CONFIG = """\
ClusterName=one
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
AuthInfo=cred_expire=5
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={host} CPUs=8 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A SLURM of one node, this machine, with eight GPUs (Debian's slurm-wlm).

    The GPUs are terminals, because SLURM accepts any device.
    """
    if not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))) or os.getuid() != 0:
        pytest.skip("needs SLURM (slurm-wlm), started by root")
    folder = tmp_path / "slurm-files"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as first, socket.socket() as second:
        first.bind(("", 0))
        second.bind(("", 0))
        ports = [first.getsockname()[1], second.getsockname()[1]]
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(CONFIG.format(host=host, user="root", folder=folder, ports=ports))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/tty[0-7]\n")
    variables = {"SLURM_CONF": config, "PYTHONPATH": small.ROOT, "JAX_PLATFORMS": "cpu"}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    daemons = [
        subprocess.Popen([name, "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        wait_for("idle", ["sinfo", "--noheader", "--format=%t"])
        yield
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(30)


def wait_for(expected: str, command: list[str], seconds: float = 180) -> None:
    """Waits until a command prints a text."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == expected:
            return
        time.sleep(0.5)
    raise AssertionError(f"{command} prints {done.stdout}{done.stderr}, not {expected}")


def submit(command: list[str], *options: str) -> tuple[str, Path]:
    """Submits a job of two tasks with the name `job`; returns its id and its log."""
    options = ("--tasks-per-node", "2", "--job-name", "job", *options)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["slurm", *options, "--", *command]) == 0
    job = said.getvalue().split()[2].rstrip(":")
    assert f"log     slurm/job-{job}.log" in said.getvalue()
    return job, Path("slurm", f"job-{job}.log")


@pytest.mark.slow
def test_slurm_runs_a_job_of_two_tasks(
    slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    _, log = submit(small.arguments(small.write_text(tmp_path), train_steps=3, model_dir="run"))
    wait_for("", ["squeue", "--noheader"])
    assert "4 × cpu" in log.read_text(), log.read_text()
    assert len(losses(tmp_path / "run")) == 3


@pytest.mark.slow
def test_a_job_continues_after_its_time_limit(
    slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_target, "_SECONDS_TO_SAVE", 60)
    command = small.arguments(small.write_text(tmp_path), train_steps=1000, model_dir="run")
    command[0] = f"{Path(__file__).with_name('slow_data.py')}:waits(seconds=1.0)"
    job, log = submit(command, "--time", "3")
    wait_for("1", ["grep", "-c", "^resuming from step", str(log)], seconds=400)
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    wait_for("", ["squeue", "--noheader"])
    stops = re.findall(r"SIGTERM: saved step (\d+) in", log.read_text())
    assert len(stops) == 2, log.read_text()
    assert small.continued_from(log.read_text()) == int(stops[0])
    described = ["scontrol", "show", "job", job]
    shown = subprocess.run(described, capture_output=True, text=True, check=True).stdout
    assert {"Restarts=1", "ExitCode=143:0"} <= set(shown.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus-per-node=8", {"0 1 2 3 of 0,1,2,3,4,5,6,7", "4 5 6 7 of 0,1,2,3,4,5,6,7"}),
        ("--gpus-per-task=4", {"0 1 2 3 of 0,1,2,3", "0 1 2 3 of 4,5,6,7"}),
    ],
)
def test_the_tasks_of_a_node_use_all_gpus(slurm: None, options: str, gpus: set[str]) -> None:
    code = (
        "import os; from mtf.base.processes.process_info import find_processes; "
        "ids = find_processes(os.environ).arguments['local_device_ids']; "
        "print(*ids, 'of', os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    done = subprocess.run(
        ["srun", "--ntasks=2", options, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()) == gpus


@pytest.mark.slow
def test_open_mpi_runs_two_processes(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI (openmpi-bin)")
    command = small.arguments(small.write_text(tmp_path), train_steps=3, model_dir="run")
    done = subprocess.run(
        [
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"),
            *(sys.executable, "-m", "mtf.run", *command),
        ],
        cwd=tmp_path,
        env={
            **small.environment_variables(),
            **{"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": ""},
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 × cpu" in done.stdout
    assert len(losses(tmp_path / "run")) == 3
