"""`mtf.launch hosts` copies the code to hosts and runs a process on each, through ssh."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.launch import hosts
from mtf.launch.__main__ import main
from tests import small
from tests.launch.fakes import Fakes
from tests.launch.test_local import losses, start

SSH = [
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
]
UNPACK = (
    """sh -c 'mkdir -p -- "$1" && cd -- "$1" && """
    "if [ -e job.sh ]; then sh job.sh idle; fi && "
    "if [ -e files ]; then xargs -0 rm -f -- <files; fi && "
    "tar --no-same-owner -xzf -' mtf "
)
RECIPE = ["--", "recipes.quickstart", "--set", "model_dir=gs://bucket/run"]
HOSTS = ["--hosts", "gpu1,gpu2"]
AGAIN = (
    "\n  python -m mtf.launch hosts --hosts gpu1,gpu2 --name quickstart -- recipes.quickstart "
    "--set model_dir=gs://bucket/run\n"
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with a file, a changed one, a new one and an ignored one."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    for name, text in (("my.py", "1\n"), (".gitignore", "*.bin\n"), ("data/big.bin", "0" * 99)):
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    for command in (["init", "-q"], ["add", "my.py"]):
        subprocess.run(["git", *command], check=True)
    (folder / "my.py").write_text("2\n")
    (folder / "new.py").write_text("3\n")
    return folder


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    monkeypatch.setattr(hosts, "_SECONDS_BETWEEN", 0.01)
    monkeypatch.setattr(hosts, "_SECONDS_TO_END", 0.1)
    (tmp_path / "fakes").mkdir()
    return Fakes(tmp_path / "fakes", monkeypatch, ["ssh"])


def ended(host: str, index: int, status: int) -> str:
    return f"[{host}] mtf.launch: process {index} ended with status {status}\n"


def test_the_commands(checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("follow 1 gpu1", "[gpu1] step 1\n" + ended("gpu1", 0, 0))
    fakes.answer("follow 1 me@gpu2", ended("me@gpu2", 1, 0))
    options = ["--hosts", "gpu1,me@gpu2", "--user", "ml", "--directory", "~/my runs"]
    assert main(["hosts", *options, *RECIPE]) == 0
    calls = fakes.calls
    for index, host in enumerate(("gpu1", "me@gpu2")):
        folder = f"'my runs/quickstart/{host}'"
        job = f"sh 'my runs/quickstart/{host}/job.sh'"
        commands = [UNPACK + folder, f"{job} start {index}", f"{job} follow 1 {host}"]
        found = [call for call in calls if call[-2] == host]
        assert found == [[*SSH, "-l", "ml", host, command] for command in commands]
    assert [call[-1].split()[-2] for call in calls[2:4]] == ["start", "start"]
    said = capsys.readouterr().out
    assert "[gpu1] step 1" in said
    for action in ("status", "logs", "stop"):
        assert f"python -m mtf.launch hosts {action} {shlex.join(options)} --name quickst" in said


def test_a_dry_run_shows_the_files(
    checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = "data.files='a b;rm -rf $HOME'"
    more = ["--env", "HF_HOME=/x y", "--python", "/opt/my env/python"]
    assert main(["hosts", *HOSTS, *more, "--dry-run", *RECIPE, nasty]) == 0
    assert fakes.calls == []
    shown = capsys.readouterr().out
    script = shown.partition("# command.sh\n")[2].partition("\n# ")[0]
    shown_words = shlex.split(script, comments=True)
    assert "MTF_COORDINATOR_ADDRESS=gpu1:61438" in shown_words
    assert "MTF_PROCESS_COUNT=2" in shown_words
    assert "HF_HOME=/x y" in shown_words
    command = ["/opt/my env/python", "-m", "mtf.run", *RECIPE[1:], nasty]
    at = shown_words.index("exec") + 1
    assert shown_words[at : at + len(command)] == command
    assert "gpu2 'sh mtf-launch/quickstart/gpu2/job.sh start 1'" in shown


def test_what_is_copied(checkout: Path, tmp_path: Path) -> None:
    from mtf.launch.bundle import Job, find_code

    code = find_code()
    job = Job("a", ["recipes.quickstart"], "python3", {}, "given", None, code)
    job.write(tmp_path / "bundle.tar.gz")
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        names = set(archive.getnames())
        archive.extractall(tmp_path / "out", filter="data")
    own = {name for name in names if name.startswith("code/")}
    assert own == {"code/my.py", "code/.gitignore", "code/new.py"}
    assert (tmp_path / "out/code/my.py").read_text() == "2\n"
    # mtf is not in this checkout, so it is copied, too.
    assert {"mtf-jax/mtf/run.py", "mtf-jax/recipes/__init__.py", "job.sh", "command.sh"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "a,-oProxyCommand=x", *RECIPE], "'-oProxyCommand=x' is not a host"),
        (["--hosts", "a b", *RECIPE], "'a b' is not a host"),
        (["--hosts", "a,a", *RECIPE], "The hosts are a, a; expected each host once"),
        (RECIPE, "Pass either --hosts A,B,… or --hosts-file FILE"),
        (["--hosts-file", "none.txt", *RECIPE], "--hosts-file none.txt cannot be read"),
        ([*HOSTS, "--name", "a/b", *RECIPE], "--name a/b: expected letters, digits, - and _"),
        ([*HOSTS, "--env", "1=2", *RECIPE], "--env 1=2: expected NAME=VALUE"),
        ([*HOSTS, "--install", "--extras", "gsc", *RECIPE], "no extra gsc. Did you mean gcs"),
        (HOSTS, "The recipe is missing"),
        ([*HOSTS, "--", "recipes.quickstart"], "The run directory is missing. The 2 processes"),
        ([*HOSTS, "--", "recipes.quickstart", "--set", "model_dir=runs/a"], "runs/a is a relative"),
        (["status", *HOSTS], "--name is missing: which run is meant by status?"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    checkout: Path,
    fakes: Fakes,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["hosts", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert fakes.calls == []


def test_a_folder_without_git_and_too_much_data(
    checkout: Path,
    fakes: Fakes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open(checkout / "corpus.txt", "wb") as file:
        file.truncate(300_000_000)
    assert main(["hosts", *HOSTS, *RECIPE]) == 2
    assert "The largest files are corpus.txt (300 MB)" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["hosts", *HOSTS, *RECIPE]) == 2
    assert "is in no git checkout" in capsys.readouterr().err
    assert fakes.calls == []


def test_ssh_is_missing(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["hosts", *HOSTS, *RECIPE]) == 2
    assert "ssh was not found. Install OpenSSH's client" in capsys.readouterr().err


def test_a_host_that_cannot_be_reached(
    checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("gpu2 sh -c", stderr="ssh: connect to host gpu2: No route to host\n", status=255)
    assert main(["hosts", *HOSTS, *RECIPE]) == 1
    said = capsys.readouterr().err
    assert "gpu2 could not be prepared: ssh: connect to host gpu2: No route" in said
    assert f"Nothing was started.\nTo go on:{AGAIN}" in said
    assert not [call for call in fakes.calls if "job.sh start" in call[-1]]


def test_a_process_that_cannot_start(
    checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("start 1", stderr="tmux is missing.\n", status=1)
    assert main(["hosts", *HOSTS, *RECIPE]) == 1
    said = capsys.readouterr().err
    assert f"gpu2 could not start the process: tmux is missing.\nTo go on:{AGAIN}" in said
    assert fakes.calls[-1] == [*SSH, "gpu1", "sh mtf-launch/quickstart/gpu1/job.sh stop 5"]


def test_a_dead_host(checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("follow 1 gpu1", "[gpu1] step 9\n" + ended("gpu1", 0, 1))
    # It is tried again, from the line after those that were shown.
    fakes.answer("follow 1 gpu2", "[gpu2] a\n[gpu2] b\nssh: lost\n", status=255, times=1)
    fakes.answer("follow 3 gpu2", "ssh: connect to host gpu2: timed out\n", status=255)
    assert main(["hosts", *HOSTS, *RECIPE]) == 1
    said = capsys.readouterr()
    assert "[gpu1] step 9" in said.out
    assert said.out.count("[gpu2] b") == 1
    assert "[gpu2] ssh: ssh: connect to host gpu2: timed out" in said.out
    assert "error: gpu2 does not answer." in said.err
    assert AGAIN in said.err


def test_a_machine_that_has_restarted(
    checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("follow 1 gpu1", ended("gpu1", 0, 1))
    fakes.answer("follow 1 gpu2", "[gpu2] mtf.launch: process 1 was killed, or its machine has\n")
    assert main(["hosts", *HOSTS, *RECIPE]) == 1
    said = capsys.readouterr()
    assert "[gpu2] mtf.launch: process 1 was killed" in said.out
    assert AGAIN in said.err


def test_no_host_answers(checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("follow", "ssh: Network is unreachable\n", status=255)
    assert main(["hosts", *HOSTS, *RECIPE]) == 1
    said = capsys.readouterr().err
    assert "No host answers" in said
    assert "python -m mtf.launch hosts logs --hosts gpu1,gpu2 --name quickstart" in said


def test_status_and_stop(checkout: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("gpu1", "[gpu1] mtf.launch: process 0 runs\n")
    fakes.answer("gpu2", stderr="ssh: no route\n", status=255)
    assert main(["hosts", "status", *HOSTS, "--name", "mine"]) == 1
    expected = "[gpu1] mtf.launch: process 0 runs\n[gpu2] does not answer: ssh: no route\n"
    assert capsys.readouterr().out == expected
    assert main(["hosts", "stop", *HOSTS, "--name", "mine"]) == 1
    assert sorted(fakes.calls) == sorted(
        [*SSH, host, f"sh mtf-launch/mine/{host}/job.sh {action} {host}"]
        for host in ("gpu1", "gpu2")
        for action in ("status", "stop 300")
    )


FAKE_SSH = """\
#!/bin/sh
# Runs the command here; the hosts share a home, as on many clusters.
while [ $# -gt 2 ]; do shift; done
HOME={home}
mkdir -p "$HOME"
cd "$HOME" && exec sh -c "$2"
"""


@pytest.fixture
def local_ssh(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh that runs commands on this machine; returns the home there."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH.format(home=tmp_path / "home"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    yield tmp_path / "home"
    subprocess.run(["tmux", "-L", "mtf", "kill-server"], check=False, stderr=subprocess.DEVNULL)


def options_of(tmp_path: Path) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = min(free.getsockname()[1], 65_000)
    return [
        *("--hosts", "one,two", "--name", "tiny", "--python", sys.executable),
        *("--coordinator-address", f"127.0.0.1:{port}", "--env", "JAX_PLATFORMS=cpu"),
        *("--env", "JAX_NUM_CPU_DEVICES=2", "--env", "XLA_FLAGS="),
    ]


@pytest.mark.slow
def test_two_hosts_train_to_the_end(tmp_path: Path, local_ssh: Path, checkout: Path) -> None:
    text = small.write_text(tmp_path)
    command = small.arguments(text, train_steps=3, model_dir=tmp_path / "run")
    options = options_of(tmp_path)
    process = start(["hosts", *options, "--", *command], checkout)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert "[one] mtf.launch: process 0 ended with status 0" in output
    assert "[two] mtf.launch: process 1 ended with status 0" in output
    assert re.search(r"^\[one\] .*4 × cpu", output, re.MULTILINE), output
    assert len(losses(tmp_path / "run")) == 3
    assert (local_ssh / "mtf-launch/tiny/two/code/new.py").read_text() == "3\n"

    process = start(["hosts", "status", *options], checkout)
    assert "[two] mtf.launch: process 1 ended with status 0" in process.communicate(timeout=60)[0]


@pytest.mark.slow
def test_one_process_is_killed_and_the_command_resumes(
    tmp_path: Path, local_ssh: Path, checkout: Path
) -> None:
    text = small.write_text(tmp_path)
    settings = {"model_dir": tmp_path / "run", "checkpoint.save.period": 10}
    options = ["hosts", *options_of(tmp_path), "--"]
    command = small.arguments(text, train_steps=100_000, **settings)
    process = start([*options, *command], checkout)
    small.read_until(process.stdout, "[one] step 25/")
    # The same run cannot be started twice.
    again = start([*options, *command], checkout)
    refused = again.communicate(timeout=60)[0]
    assert again.returncode == 1
    assert "one could not be prepared: The job tiny runs here already" in refused

    os.kill(int((local_ssh / "mtf-launch/tiny/two/process.pid").read_text()), signal.SIGKILL)
    started = time.monotonic()
    output = process.communicate(timeout=180)[0]
    assert time.monotonic() - started < 60
    assert process.returncode == 137
    assert "mtf.launch: two (process 1 of 2) ended with status 137" in output
    assert re.search(r"\[one\] error: Process 1 \(host .*\) died\.", output)

    last = small.steps(tmp_path / "run")[-1]
    command = small.arguments(text, train_steps=last + 5, **settings)
    process = start([*options, *command], checkout)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert f"[one] resuming from step {last}" in output


@pytest.mark.slow
def test_stop_saves(tmp_path: Path, local_ssh: Path, checkout: Path) -> None:
    text = small.write_text(tmp_path)
    options = options_of(tmp_path)
    command = small.arguments(text, train_steps=100_000, model_dir=tmp_path / "run")
    process = start(["hosts", "--detach", *options, "--", *command], checkout)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    logs = start(["hosts", "logs", *options], checkout)
    small.read_until(logs.stdout, "[one] step 3/")
    stopped = start(["hosts", "stop", *options], checkout)
    output = stopped.communicate(timeout=120)[0]
    assert stopped.returncode == 0
    assert "[one] mtf.launch: process 0 ended with status 0" in output
    assert re.search(r"\[one\] SIGTERM: saved step \d+", logs.communicate(timeout=60)[0])
