"""`python -m mtf.doctor` tells what is here, hides secrets, and says whether training works."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mtf.doctor import child, machine, network, packages, report, training
from mtf.doctor.__main__ import main

SECRET = "s3cret"


@pytest.fixture
def server() -> Iterator[str]:
    """A server on this machine that answers every request with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def home(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a user whose servers are on this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in {
        "HOME": str(tmp_path),
        "HF_ENDPOINT": server,
        "HF_TOKEN": SECRET,
        "STORAGE_EMULATOR_HOST": server,
        "MTF_CACHE": str(tmp_path / "cache"),
        "NO_PROXY": f"http://name:{SECRET}@127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def rows(text: str, title: str) -> dict[str, str]:
    """The lines of a section: name → the rest."""
    section = next(each for each in text.split("\n\n") if each.startswith(f"{title}\n"))
    lines = [line.strip().partition("  ") for line in section.splitlines()[1:]]
    return {name: rest.strip() for name, _, rest in lines}


def test_a_page_without_training(
    home: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--no-train"]) == 0
    text = capsys.readouterr().out
    versions = rows(text, "versions")
    assert versions["python"].startswith(f"{platform.python_version()},")
    for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorstore", "grain"):
        assert versions[name] == importlib.metadata.version(name)
    assert rows(text, "devices")["cpu"].startswith("1 × cpu, ")
    answers = rows(text, "network")
    assert answers.keys() == {"Hugging Face hub", "gs://"}
    assert all(answer.startswith(f"{server} answers") for answer in answers.values())
    assert rows(text, "credentials")["Hugging Face hub"] == "found: HF_TOKEN"
    assert rows(text, "environment variables")["MTF_CACHE"] == "~/cache"
    assert "training\n" not in text
    assert text.endswith("\nproblems\n  none\n")
    assert SECRET not in text and str(home) not in text


def test_the_page_says_what_is_wrong(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    url = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(home / "key.json"))
    assert main([]) == 1
    text = capsys.readouterr().out
    assert rows(text, "network")["Hugging Face hub"] == "not asked, because HF_HUB_OFFLINE is set"
    devices, store, key = text.partition("\nproblems\n")[2].splitlines()
    assert "JAX finds no device" in devices and "abacus" in devices
    assert store.startswith(f"  gs://: {url} cannot be reached") and "refused" in store
    assert key.endswith("GOOGLE_APPLICATION_CREDENTIALS names ~/key.json, which does not exist.")
    assert "training\n" not in text


@pytest.mark.slow
def test_two_steps_of_training(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    trained = rows(capsys.readouterr().out, "training")["2 steps of recipes.quickstart"]
    seconds, loss = float(trained.split()[0]), float(trained.split("loss ")[1].split()[0])
    # ln 256 = 5.5: at the start, all bytes are about equally likely.
    assert 1 < seconds < 300 and 4.5 < loss < 6.5


def test_training_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "Traceback …\nXlaRuntimeError: INTERNAL: no kernel image"
    monkeypatch.setattr(child, "run", lambda *_: (1, "", lines))
    found = training.training(num_devices=3)
    assert not found.works
    assert found.problems == ["Training failed: XlaRuntimeError: INTERNAL: no kernel image"]
    assert "no kernel image" in str(found)


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    status, _, errors = child.run(["http.server", "0", "--bind", "127.0.0.1"], str(tmp_path), 0.5)
    assert status is None and "0 seconds" in errors


def test_extras() -> None:
    required = {
        "here": ["numpy>=1", "jax>=0.1"],
        "old": ["numpy>=1000"],
        "fake": ["numpy>=1", "no-such-package>=2"],
        "all": ["mtf-jax[here,old]"],
    }
    parsed = {name: [Requirement(each) for each in texts] for name, texts in required.items()}
    found = dict(packages.rows(parsed, has_gpu=False))
    version = importlib.metadata.version("numpy")
    assert found["here"] == "installed"
    assert found["old"] == f"missing numpy >=1000 (here: {version}): pip install 'mtf-jax[old]'"
    assert found["fake"] == "missing no-such-package: pip install 'mtf-jax[fake]'"
    assert found["all"] == f"missing numpy >=1000 (here: {version}): pip install 'mtf-jax[all]'"


def test_torch_for_cpus_is_named_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed_version", lambda needed: None)
    required = {"torch": [Requirement("torch>=2.13")]}
    release = "pip install 'mtf-jax[torch]'"
    cpu = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    assert packages.rows(required, has_gpu=True) == [("torch", f"missing torch: {release}")]
    assert packages.rows(required, has_gpu=False) == [
        ("torch", f"missing torch: {cpu} && {release}")
    ]


def test_what_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    for text, expected in {
        "/home/ann/runs": "~/runs",
        "'/home/ann'": "'~'",
        "/home/anna/runs": "/home/anna/runs",
        "/scratch/ann/x:/opt/ann": "/scratch/USER/x:/opt/USER",
        "http://ann:pw@proxy:3128": "http://…@proxy:3128",
        "https://host/file?X-Amz-Signature=abc": "https://host/file?…",
    }.items():
        assert report.shown(text) == expected


def test_variables() -> None:
    environ = {
        "XLA_FLAGS": "--xla_a=1\n--xla_b=2",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "JAX_PLATFORMS": "cpu",
        "https_proxy": "http://proxy:3128",
        "EDITOR": "vi",
        "MY_PASSWORD": SECRET,
    }
    assert dict(machine.variables(environ).rows) == {
        "XLA_FLAGS": "--xla_a=1 --xla_b=2",
        "AWS_SECRET_ACCESS_KEY": "set (not shown)",
        "HF_TOKEN": "set (not shown)",
        "JAX_PLATFORMS": "cpu",
        "https_proxy": "http://proxy:3128",
    }


def test_credentials(home: Path) -> None:
    def found(**environ: str) -> dict[str, str]:
        texts = dict(network.credentials(environ).rows)
        return {name: text.partition(";")[0] for name, text in texts.items()}

    assert set(found().values()) == {"not found"}
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(SECRET)
    assert found()["s3://"] == f"found: {home}/.aws/credentials"
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SHARED_CREDENTIALS_FILE": "/no/file"}
    assert found(**keys)["s3://"] == "found: AWS_ACCESS_KEY_ID"
    (home / "key.json").write_text(SECRET)
    google = found(GOOGLE_APPLICATION_CREDENTIALS=f"{home}/key.json")["gs://"]
    assert google == f"found: {home}/key.json"


def test_a_bucket_is_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bucket", "here"]) == 2
    output = capsys.readouterr()
    assert output.err == (
        "error: --bucket here: expected an address, such as gs://my-bucket/runs.\n"
    )
    assert not output.out
