"""`mtf.launch gke` applies a JobSet with kubectl; its pods find each other."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from mtf.cluster.places import find_place
from mtf.launch.__main__ import main
from mtf.run_end import read_end
from tests import small
from tests.launch.fakes import Fakes

OPTIONS = ["--image", "gcr.io/p/mtf:1", "--type"]
RECIPE = ["--", "recipes.t5_1_1_base_c4", "--set", "model_dir=gs://bucket/run"]
NAME = "t5-1-1-base-c4"
GET = ["kubectl", "get", "jobset", NAME, "--ignore-not-found", "--output=json"]
APPLY = ["kubectl", "apply", f"--filename=gke/{NAME}.yaml"]
DELETE = ["kubectl", "delete", "jobset", NAME, "--cascade=foreground"]
SELECTOR = f"--selector=jobset.sigs.k8s.io/jobset-name={NAME}"


@pytest.mark.slow
def test_a_run_that_is_evicted_fails_so_that_it_is_started_again(tmp_path: Path) -> None:
    command = small.arguments(small.write_text(tmp_path), train_steps=100_000, model_dir="run")
    for variables, status in (({"MTF_STOPPED_FAILS": "1"}, 143), ({}, 0)):
        process = small.start(command, tmp_path, **variables)
        small.read_until(process.stdout, "step ")
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=120)
        assert process.returncode == status, output
        end = read_end(tmp_path / "run")
        assert end is not None and (end.how, end.reason) == ("stopped", "SIGTERM")
    last = small.steps(tmp_path / "run")[-1]
    command = small.arguments(tmp_path / "text.txt", train_steps=last + 1, model_dir="run")
    small.run_process(command, tmp_path, status=0, MTF_STOPPED_FAILS="1")


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fakes").mkdir()
    return Fakes(tmp_path / "fakes", monkeypatch, ["kubectl"])


def applied() -> Any:
    """The manifest that was applied."""
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(Path(f"gke/{NAME}.yaml").read_text())


@pytest.mark.parametrize(
    ("kind", "hosts", "chips", "accelerator", "topology"),
    [
        ("v4-8", 1, 4, "tpu-v4-podslice", "2x2x1"),
        ("v4-32", 4, 4, "tpu-v4-podslice", "2x2x4"),
        ("v3-8", 1, 4, "tpu-v3-device", "2x2"),
        ("v3-512", 64, 4, "tpu-v3-slice", "16x16"),
        ("v5p-128", 16, 4, "tpu-v5p-slice", "4x4x4"),
        ("v5litepod-16", 4, 4, "tpu-v5-lite-podslice", "4x4"),
        ("v6e-8", 1, 8, "tpu-v6e-slice", "2x4"),
    ],
)
def test_the_manifest(
    kind: str, hosts: int, chips: int, accelerator: str, topology: str, fakes: Fakes
) -> None:
    nasty = "data.files='a b;rm -rf $(HOME)'"
    more = ["--env", "HF_HOME=/x", "--queue", "team", "--service-account", "me"]
    assert main(["gke", *OPTIONS, kind, *more, *RECIPE, nasty]) == 0
    assert fakes.calls == [GET, APPLY]
    found = applied()
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert found["metadata"]["name"] == NAME
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 3
    (replicated,) = found["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("workers", 1)
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (hosts, hosts, 0)
    assert job["completionMode"] == "Indexed"
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["serviceAccountName"] == "me"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    (container,) = pod["containers"]
    assert container["image"] == "gcr.io/p/mtf:1"
    assert {"name": "MTF_STOPPED_FAILS", "value": "1"} in container["env"]
    assert container["resources"] == {"limits": {"google.com/tpu": chips}}
    # Kubernetes would replace $(HOME); $$(HOME) stands for $(HOME).
    escaped = "data.files='a b;rm -rf $$(HOME)'"
    assert container["command"] == ["python", "-m", "mtf.run", *RECIPE[1:], escaped]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["HF_HOME"] == "/x"


def test_the_pods_find_each_other(fakes: Fakes) -> None:
    assert main(["gke", *OPTIONS, "v4-32", *RECIPE]) == 0
    job = applied()["spec"]["replicatedJobs"][0]["template"]["spec"]
    labels = {
        "metadata.labels['jobset.sigs.k8s.io/jobset-name']": NAME,
        "metadata.labels['jobset.sigs.k8s.io/replicatedjob-name']": "workers",
    }
    env = {"JOB_COMPLETION_INDEX": "2"}  # set by Kubernetes for indexed jobs
    for each in job["template"]["spec"]["containers"][0]["env"]:
        field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        env[each["name"]] = each["value"] if field is None else labels[field]
    place = find_place(env)
    assert place is not None
    assert (place.index, place.count, place.host) == (2, 4, f"{NAME}-workers-0-0.{NAME}")


def test_a_dry_run_writes_nothing(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    where = ["--namespace", "n", "--context", "c", "--spot", "--name", "mine"]
    assert main(["gke", *OPTIONS, "v4-32", *where, "--dry-run", *RECIPE]) == 0
    assert fakes.calls == []
    assert not Path("gke").exists()
    text, _, commands = capsys.readouterr().out.partition("kubectl")
    pod = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert commands.splitlines()[-1] == (
        "kubectl apply --filename=gke/mine.yaml --context=c --namespace=n"
    )


@pytest.mark.parametrize("state", ["Failed", "Completed"])
def test_the_same_command_goes_on(state: str, fakes: Fakes) -> None:
    fakes.answer("get jobset", json.dumps({"status": {"terminalState": state}}))
    assert main(["gke", *OPTIONS, "v4-8", *RECIPE]) == 0
    assert fakes.calls == [GET, DELETE, APPLY]


def test_it_runs_already(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.answer("get jobset", json.dumps({"status": {"restarts": 1}}))
    assert main(["gke", *OPTIONS, "v4-8", *RECIPE]) == 1
    assert f"The JobSet {NAME} runs already. Stop it, or" in capsys.readouterr().err
    assert fakes.calls == [GET]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ('error: no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"', "JobSet is"),
        ("Error from server (Forbidden): jobsets is forbidden", "needs the role Kubernetes Engine"),
        ("Error from server (Forbidden): exceeded quota: tpus", "quota of the namespace is too"),
        (
            "The connection to the server localhost:8080 was refused - connection refused",
            "get-cred",
        ),
    ],
)
def test_it_cannot_be_applied(
    said: str, advice: str, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer("kubectl apply", stderr=f"{said}\n", status=1)
    options = [*OPTIONS, "v4-8", "--name", NAME, *RECIPE]
    assert main(["gke", *options]) == 1
    error = capsys.readouterr().err
    assert f"kubectl apply failed: {said}" in error
    assert advice in error
    assert f"To go on:\n  python -m mtf.launch gke {shlex.join(options)}" in error


def test_status_logs_and_stop(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    conditions = [{"type": "Failed", "status": "True"}]
    failed = {"status": {"conditions": conditions, "restarts": 3}}
    fakes.answer("get jobset", json.dumps(failed))
    fakes.answer("get pods", "NAME  STATUS\nmine-workers-0-1  Error\n")
    fakes.answer("kubectl logs", "[pod/mine-workers-0-0-x/mtf] step 1\n")
    assert main(["gke", "status", "--name", NAME]) == 1
    said = capsys.readouterr().out
    assert f"{NAME}: Failed, 3 restarts\n" in said
    assert "mine-workers-0-1  Error" in said
    assert main(["gke", "logs", "--name", NAME]) == 0
    assert "step 1" in capsys.readouterr().out
    assert main(["gke", "stop", "--name", NAME]) == 0
    logs = ["--follow", "--prefix", "--tail=-1", "--ignore-errors", "--max-log-requests=2048"]
    assert fakes.calls == [
        *(GET, ["kubectl", "get", "pods", SELECTOR, "--output=wide"]),
        *(["kubectl", "logs", SELECTOR, *logs], DELETE),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--type", "v4-8", *RECIPE], "--image is missing"),
        (["--image", "a", *RECIPE], "--type is missing"),
        ([*OPTIONS, "v2-8", *RECIPE], "--type v2-8: GKE has no TPUs of this type and size"),
        ([*OPTIONS, "v4-24", *RECIPE], "--type v4-24: GKE has no TPUs of this type and size"),
        ([*OPTIONS, "v4-8", "--name", "A_b", *RECIPE], "--name A_b: expected at most 40 lower"),
        ([*OPTIONS, "v4-8", "--", "recipes.quickstart"], "The run directory is missing"),
        ([*OPTIONS, "v4-8", "--max-restarts", "-1", *RECIPE], "--max-restarts is -1"),
        (["status"], "--name is missing"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gke", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert fakes.calls == []


def test_kubectl_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["gke", *OPTIONS, "v4-8", *RECIPE]) == 2
    assert "kubectl was not found. Install it" in capsys.readouterr().err
