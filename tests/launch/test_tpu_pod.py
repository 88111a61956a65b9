"""`mtf.launch tpu-pod` runs a recipe on the workers of a Cloud TPU through gcloud."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mtf.launch import gcloud, shared, tpu_pod
from mtf.launch.__main__ import main
from mtf.launch.tpu_types import find_slice
from tests.launch.fakes import Fakes, ends

UNPACK = (
    """sh -c 'mkdir -p -- "$1" && cd -- "$1" && """
    "if [ -e job.sh ]; then sh job.sh idle; fi && "
    "if [ -e files ]; then xargs -0 rm -f -- <files; fi && "
    "tar --no-same-owner -xzf -' mtf mtf-launch/t0 <mtf-launch-t0.tar.gz"
)
TPUS = ["gcloud", "compute", "tpus"]
ZONE = ["--zone=us-central2-b", "--quiet"]
ALIVE = ["--ssh-flag=-oServerAliveInterval=15", "--ssh-flag=-oServerAliveCountMax=3"]
OPTIONS = ["--name", "t0", "--zone", "us-central2-b"]
RECIPE = ["--", "recipes.quickstart", "--set", "model_dir=gs://bucket/run"]
NOT_FOUND = (
    "ERROR: (gcloud.compute.tpus.tpu-vm.describe) NOT_FOUND: Resource "
    "'projects/p/locations/us-central2-b/nodes/t0' was not found\n"
)


def ssh(command: str) -> list[str]:
    return [*TPUS, "tpu-vm", "ssh", "t0", "--worker=all", f"--command={command}", *ZONE, *ALIVE]


def run_commands(bundle: str) -> list[list[str]]:
    """The commands that start a run on a TPU that is ready."""
    job = "sh mtf-launch/t0/job.sh"
    return [
        [*TPUS, "tpu-vm", "scp", bundle, "t0:mtf-launch-t0.tar.gz", "--worker=all", *ZONE],
        *(ssh(UNPACK), ssh(f"{job} install"), ssh(f"{job} start"), ssh(f"{job} follow")),
    ]


DESCRIBE = [*TPUS, "tpu-vm", "describe", "t0", "--format=json", *ZONE]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """A fake gcloud, and a checkout as the current directory."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    subprocess.run(["git", "init", "-q"], check=True)
    Path("my.py").write_text("1\n")
    monkeypatch.setattr(shared, "pinned_requirements", lambda extras: sorted(extras))
    monkeypatch.setattr(gcloud, "_SECONDS_BETWEEN", 0.01)
    monkeypatch.setattr(tpu_pod, "_SECONDS_TO_END", 0.1)
    (tmp_path / "fakes").mkdir()
    return Fakes(tmp_path / "fakes", monkeypatch, ["gcloud"])


def described(state: str, kind: str) -> str:
    return json.dumps({"name": "t0", "state": state, "acceleratorType": kind})


@pytest.mark.parametrize(
    ("kind", "runtime", "workers"),
    [
        ("v4-8", "tpu-ubuntu2204-base", 1),
        ("v4-32", "tpu-ubuntu2204-base", 4),
        ("v3-512", "tpu-ubuntu2204-base", 64),
        ("v5p-128", "v2-alpha-tpuv5", 16),
        ("v5litepod-16", "v2-alpha-tpuv5-lite", 4),
        ("v6e-8", "v2-alpha-tpuv6e", 1),
    ],
)
def test_a_new_tpu(
    kind: str, runtime: str, workers: int, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("tpu-vm describe", stderr=NOT_FOUND, status=1)
    fakes.answer("job.sh follow", ends(dict.fromkeys(range(workers), 0)))
    assert main(["tpu-pod", *OPTIONS, "--type", kind, "--create", *RECIPE]) == 0
    calls = fakes.calls
    created = [f"--accelerator-type={kind}", f"--version={runtime}"]
    assert calls[:2] == [DESCRIBE, [*TPUS, "tpu-vm", "create", "t0", *created, *ZONE]]
    assert re.search(r"/mtf-launch-t0\.tar\.gz$", calls[2][5])
    assert calls[2:] == run_commands(calls[2][5])
    said = capsys.readouterr().out
    assert f"Started {workers} workers of t0." in said
    for action in ("status", "logs", "stop"):
        assert f"python -m mtf.launch tpu-pod {action} --name t0 --zone us-central2-b" in said


def test_a_tpu_that_is_there(fakes: Fakes) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-32"))
    fakes.answer("job.sh follow", ends({0: 0, 1: 0, 2: 0, 3: 0}))
    assert main(["tpu-pod", *OPTIONS, "--delete", *RECIPE]) == 0
    bundle = fakes.calls[1][5]
    deleted = [*TPUS, "tpu-vm", "delete", "t0", *ZONE]
    assert fakes.calls == [DESCRIBE, *run_commands(bundle), deleted]


def test_a_queued_spot_tpu_is_waited_for(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", stderr=NOT_FOUND, status=1)
    fakes.answer("queued-resources describe", stderr=NOT_FOUND, status=1, times=1)
    for state in ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"):
        answer = json.dumps({"state": {"state": state}})
        fakes.answer("queued-resources describe", answer, times=1)
    options = ["--type", "v4-8", "--create", "--queued", "--spot", "--detach"]
    assert main(["tpu-pod", *OPTIONS, "--project", "p", *options, *RECIPE]) == 0
    where = ["--zone=us-central2-b", "--project=p", "--quiet"]
    look = [*TPUS, "queued-resources", "describe", "t0", "--format=json", *where]
    queue = [
        *(*TPUS, "queued-resources", "create", "t0", "--node-id=t0", "--accelerator-type=v4-8"),
        *("--runtime-version=tpu-ubuntu2204-base", "--spot", *where),
    ]
    assert fakes.calls[1:6] == [look, queue, look, look, look]
    assert "queued resource t0: WAITING_FOR_RESOURCES" in capsys.readouterr().out


def test_a_dry_run_shows_everything(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "data.files='a b;rm -rf $HOME'"
    options = ["--type", "v4-32", "--create", "--dry-run"]
    assert main(["tpu-pod", *OPTIONS, *options, *RECIPE, nasty]) == 0
    assert fakes.calls == []
    shown = capsys.readouterr().out
    lines = [shlex.split(line) for line in shown.splitlines() if line.startswith("gcloud")]
    created = ["--accelerator-type=v4-32", "--version=tpu-ubuntu2204-base"]
    create = [*TPUS, "tpu-vm", "create", "t0", *created, *ZONE]
    assert lines == [DESCRIBE, create, *run_commands("mtf-launch-t0.tar.gz")]
    script = shown.partition("# command.sh\n")[2].partition("\n# ")[0]
    words = shlex.split(script, comments=True)
    at = words.index("mtf.run") + 1
    assert words[at : at + 4] == [*RECIPE[1:], nasty]
    assert "# requirements.txt\ngcs\ntpu\n" in shown


QUOTA = (
    "ERROR: (gcloud.compute.tpus.tpu-vm.create) RESOURCE_EXHAUSTED: Quota limit "
    "'TPUV4PodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-central2-b.\n"
)
CAPACITY = 'There is no more capacity in the zone "us-central2-b"; you can try in another zone\n'
PERMISSION = "ERROR: PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on resource\n"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (QUOTA, "The quota of the project is too small"),
        (CAPACITY, "The zone has no free TPUs of this type. Wait for them with --queued"),
        (PERMISSION, "needs the roles TPU Admin and Service Account User"),
        ("You do not have an active account selected.\n", "Log in: gcloud auth login"),
    ],
)
def test_it_cannot_be_created(
    said: str, advice: str, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("tpu-vm describe", stderr=NOT_FOUND, status=1)
    fakes.answer("tpu-vm create", stderr=said, status=1)
    options = [*OPTIONS, "--type", "v4-32", "--create", *RECIPE]
    assert main(["tpu-pod", *options]) == 1
    error = capsys.readouterr().err
    assert said.strip() in error
    assert advice in error
    assert f"To go on:\n  python -m mtf.launch tpu-pod {shlex.join(options)}" in error
    assert len(fakes.calls) == 2


def test_a_dead_worker(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-32"))
    fakes.answer("job.sh follow", "[worker 0] step 1\n" + ends({0: 1, 1: 1, 3: 1}), status=255)
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 1
    said = capsys.readouterr()
    assert "[worker 0] step 1" in said.out
    assert "mtf.launch: worker 0 ended with status 1" in said.err
    assert "Worker 2 of t0 does not answer. The other workers have ended." in said.err
    assert f"python -m mtf.launch tpu-pod {shlex.join([*OPTIONS, *RECIPE])}" in said.err
    assert fakes.calls[-1] == ssh("sh mtf-launch/t0/job.sh stop 20")


def test_lines_of_workers_that_were_mixed(fakes: Fakes) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-16"))
    fakes.answer("job.sh follow", ends({0: 0}) + "[worker 1] mtf.launch: pr[worker 0] ocess 1\n")
    fakes.answer("job.sh status", ends({0: 0, 1: 0}))
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 0
    assert fakes.calls[-1] == ssh("sh mtf-launch/t0/job.sh status")


def test_a_worker_that_does_not_end_is_stopped(
    fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-16"))
    fakes.answer("job.sh follow", ends({1: 3}), seconds=60)
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 1
    assert "Worker 0 of t0 does not answer" in capsys.readouterr().err
    assert fakes.calls[-1] == ssh("sh mtf-launch/t0/job.sh stop 20")


def test_preempted_during_the_run(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tpu_pod, "_SECONDS_BETWEEN", 0.01)
    fakes.answer("tpu-vm describe", described("READY", "v4-32"), times=2)
    fakes.answer("tpu-vm describe", described("PREEMPTED", "v4-32"))
    fakes.answer("job.sh follow", "[worker 0] step 1\n", seconds=60)
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 1
    said = capsys.readouterr()
    assert "t0 was preempted or deleted (state: PREEMPTED)" in said.err
    again = [*("--create", "--type", "v4-32"), *OPTIONS, *RECIPE]
    assert f"python -m mtf.launch tpu-pod {shlex.join(again)}" in said.err


def test_preempted_and_started_again(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-8"), times=1)
    fakes.answer("tpu-vm describe", described("PREEMPTED", "v4-8"))
    fakes.answer("job.sh follow", "[worker 0] step 1\n", status=255, times=1)
    fakes.answer("job.sh follow", "[worker 0] step 2\n" + ends({0: 0}))
    options = ["--type", "v4-8", "--create", "--spot", "--restarts", "2", "--delete"]
    assert main(["tpu-pod", *OPTIONS, *options, *RECIPE]) == 0
    calls = fakes.calls
    create = ["--accelerator-type=v4-8", "--version=tpu-ubuntu2204-base", "--spot"]
    delete = [*TPUS, "tpu-vm", "delete", "t0", *ZONE]
    assert calls[0] == DESCRIBE
    assert calls[1:6] == run_commands(calls[1][5])
    assert calls[6:9] == [DESCRIBE, DESCRIBE, delete]
    assert calls[9] == [*TPUS, "tpu-vm", "create", "t0", *create, *ZONE]
    assert calls[10:] == [*run_commands(calls[10][5]), delete]
    said = capsys.readouterr()
    assert "t0 was preempted or deleted (state: PREEMPTED). Restarts left: 2" in said.err
    assert "[worker 0] step 2" in said.out


def test_preempted_before(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", described("PREEMPTED", "v4-32"))
    fakes.answer("job.sh follow", ends({0: 0, 1: 0, 2: 0, 3: 0}))
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 1
    again = ["--create", "--type", "v4-32", *OPTIONS, *RECIPE]
    error = capsys.readouterr().err
    assert "t0 was preempted. With --create, it is deleted and created again" in error
    assert f"To go on:\n  python -m mtf.launch tpu-pod {shlex.join(again)}" in error
    # That command deletes it and creates it again.
    assert main(["tpu-pod", *again]) == 0
    made = [*TPUS, "tpu-vm", "create", "t0", "--accelerator-type=v4-32"]
    made += ["--version=tpu-ubuntu2204-base", *ZONE]
    assert fakes.calls[2:4] == [[*TPUS, "tpu-vm", "delete", "t0", *ZONE], made]


def test_a_preempted_queued_resource_is_deleted(fakes: Fakes) -> None:
    fakes.answer("tpu-vm describe", stderr=NOT_FOUND, status=1)
    suspended = json.dumps({"state": {"state": "SUSPENDED"}})
    fakes.answer("queued-resources describe", suspended, times=1)
    fakes.answer("queued-resources describe", json.dumps({"state": {"state": "ACTIVE"}}))
    options = ["--type", "v4-8", "--create", "--queued", "--detach"]
    assert main(["tpu-pod", *OPTIONS, *options, *RECIPE]) == 0
    assert fakes.calls[2] == [*TPUS, "queued-resources", "delete", "t0", "--force", *ZONE]
    assert fakes.calls[3][:5] == [*TPUS, "queued-resources", "create"]


def test_status_logs_and_stop(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-8"))
    fakes.answer("job.sh status", "[worker 0] mtf.launch: process 0 runs\n")
    assert main(["tpu-pod", "status", *OPTIONS]) == 0
    assert "t0 v4-8: READY\n[worker 0] mtf.launch: process 0 runs\n" in capsys.readouterr().out
    assert main(["tpu-pod", "logs", *OPTIONS]) == 0
    assert main(["tpu-pod", "stop", "--delete", *OPTIONS]) == 0
    job = "sh mtf-launch/t0/job.sh"
    assert fakes.calls == [
        *(DESCRIBE, ssh(f"{job} status"), ssh(f"{job} follow"), ssh(f"{job} stop 300")),
        [*TPUS, "tpu-vm", "delete", "t0", *ZONE],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--create", *RECIPE], "--create needs --type, such as --type v4-32"),
        (["--restarts", "1", *RECIPE], "--restarts is for --create only"),
        (["--restarts", "-1", *RECIPE], "--restarts is -1; expected at least 0"),
        (["--spot", *RECIPE], "--spot is for --create only"),
        (["--type", "v4-3", *RECIPE], "v4 has no slice of 3 cores; the number is a multiple of 8"),
        (["--type", "v5lite-8", *RECIPE], "expected a type of Cloud TPU.*Did you mean v5litepod"),
        (["--type", "v4-16", "--", "recipes.quickstart"], "The run directory is missing"),
        (["--type", "v4-8", "--delete", "--", "recipes.quickstart"], "run directory is missing"),
        (["--name", "a;b", *RECIPE], "--name a;b: expected letters, digits"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tpu-pod", *OPTIONS, *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert fakes.calls == []


def test_there_is_no_such_tpu_or_another(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", stderr=NOT_FOUND, status=1, times=1)
    fakes.answer("tpu-vm describe", described("READY", "v4-8"))
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 2
    assert "There is no TPU t0 in us-central2-b. Pass --create" in capsys.readouterr().err
    assert main(["tpu-pod", *OPTIONS, "--type", "v4-32", *RECIPE]) == 2
    assert "t0 is a v4-8, not a v4-32. Leave out --type." in capsys.readouterr().err


def test_a_tpu_that_changes(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("CREATING", "STOPPING", "STOPPED"):
        fakes.answer("tpu-vm describe", described(state, "v4-8"), times=1)
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 1
    error = capsys.readouterr().err
    start = "gcloud compute tpus tpu-vm start t0 --zone=us-central2-b"
    assert f"t0 is STOPPED, not READY. Start it: {start}\nTo go on:\n  python -m" in error
    assert fakes.calls == [DESCRIBE] * 3


def test_gcloud_fails_during_the_run(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("tpu-vm describe", described("READY", "v4-16"), times=1)
    fakes.answer("tpu-vm describe", stderr="There was a problem refreshing tokens.\n", status=1)
    fakes.answer("job.sh follow", "[worker 0] step 1\n", status=255)
    assert main(["tpu-pod", *OPTIONS, "--delete", *RECIPE]) == 1
    error = capsys.readouterr().err
    assert "There was a problem refreshing tokens." in error
    logs = f"python -m mtf.launch tpu-pod logs {shlex.join(OPTIONS)} --delete"
    assert f"The run may go on. To see it:\n  {logs}" in error
    # Nothing is stopped or deleted: the run may go on.
    assert fakes.calls[-1] == DESCRIBE


def test_gcloud_is_missing(
    fakes: Fakes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["tpu-pod", *OPTIONS, *RECIPE]) == 2
    assert "gcloud was not found. Install it: https://cloud.google" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hosts", "chips_per_host"),
    [
        *(("v2-8", 1, 4), ("v2-32", 4, 4), ("v3-8", 1, 4), ("v3-2048", 256, 4)),
        *(("v4-16", 2, 4), ("v4-4096", 512, 4), ("v5p-8", 1, 4), ("v5p-12288", 1536, 4)),
        *(("v5litepod-1", 1, 1), ("v5e-8", 1, 8), ("v5litepod-256", 64, 4)),
        *(("v6e-4", 1, 4), ("v6e-16", 4, 4), ("v6e-256", 64, 4)),
    ],
)
def test_the_sizes_of_slices(name: str, hosts: int, chips_per_host: int) -> None:
    found = find_slice(name)
    assert (found.hosts, found.chips_per_host) == (hosts, chips_per_host)


CURL = """\
#!/bin/sh
case "$*" in
*agent-worker-number) echo -n 3 ;;
*worker-network-endpoints) echo -n "a:b:10.0.0.7,c:d:10.0.0.8,e:f:10.0.0.9,g:h:10.0.0.10" ;;
esac
"""


def test_workers_find_each_other_by_metadata(fakes: Fakes, tmp_path: Path) -> None:
    """job.sh itself, with a fake metadata server, tmux and Python."""
    from mtf.launch.bundle import Job

    folder = tmp_path / "worker"
    (folder / "env/bin").mkdir(parents=True)
    job = Job("t0", ["recipes.quickstart"], None, {}, "tpu", [], None)
    for name, text in job.texts().items():
        (folder / name).write_text(text)
    for name, text in (
        (tmp_path / "fakes/bin/curl", CURL),
        (tmp_path / "fakes/bin/tmux", "#!/bin/sh\nexit 1\n"),
        (folder / "env/bin/python", "#!/bin/sh\necho $* ; env | grep ^MTF_ | sort\nexit 5\n"),
    ):
        name.write_text(text)
        name.chmod(0o755)
    subprocess.run(["sh", str(folder / "job.sh"), "run"], check=True, cwd=tmp_path)
    assert (folder / "log").read_text().splitlines() == [
        "-m mtf.run recipes.quickstart",
        "MTF_COORDINATOR_ADDRESS=10.0.0.7:61438",
        "MTF_PROCESS_COUNT=4",
        "MTF_PROCESS_INDEX=3",
    ]
    followed = subprocess.run(
        ["sh", str(folder / "job.sh"), "follow"], check=True, capture_output=True, text=True
    ).stdout
    assert followed.splitlines()[0] == "[worker 3] -m mtf.run recipes.quickstart"
    assert followed.splitlines()[-1] == "[worker 3] mtf.launch: process 3 ended with status 5"


def test_packages_are_installed_once(fakes: Fakes, tmp_path: Path) -> None:
    """job.sh itself, with a fake uv that works at the second call."""
    from mtf.launch.bundle import Job

    folder = tmp_path / "worker"
    folder.mkdir()
    job = Job("t0", ["recipes.quickstart"], None, {}, "given", ["jax==1"], None)
    for name, text in job.texts().items():
        (folder / name).write_text(text)
    uv = tmp_path / "fakes/bin/uv"
    uv.write_text(
        "#!/bin/sh\n"
        f"echo $* >>{tmp_path}/uv.log\n"
        "[ $1 = pip ] || mkdir env\n"
        f"[ $1 = venv ] || [ $(grep -c pip {tmp_path}/uv.log) = 2 ]\n"
    )
    uv.chmod(0o755)
    install = ["sh", str(folder / "job.sh"), "install"]
    statuses = [subprocess.run(install, check=False).returncode for _ in range(3)]
    assert statuses == [1, 0, 0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (tmp_path / "uv.log").read_text().splitlines() == 2 * [
        f"venv --quiet --python {version} env",
        "pip install --quiet --python env/bin/python -r requirements.txt",
    ]
