"""Wrong addresses, credentials and permissions: one message, exit status 2, nothing made."""

from __future__ import annotations

import contextlib
import http.server
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mtf.cli.convert.command import main as convert_main
from mtf.cli.run import main as run_main
from mtf.cli.status import main as status_main
from tests import small, stores
from tests.storage.conftest import Servers

SCHEMES = (
    # (address, words of the message)
    ("gs:/bucket/x", "Did you mean gs://bucket/x?"),
    ("gs:bucket/x", "Did you mean gs://bucket/x?"),
    ("s3:/bucket/x", "Did you mean s3://bucket/x?"),
    ("GS://bucket/x", "Did you mean gs://?"),
    ("gcs://bucket/x", "unknown scheme; expected a local path or gs://, s3://, https://"),
    ("hdfs://host/x", "unknown scheme"),
    ("gs://", "the name of the bucket or host is missing"),
    ("s3:///x", "the name of the bucket or host is missing"),
)
MISSING = (
    ("gs://bucket/nothing", "does not exist"),
    ("s3://bucket/nothing", "does not exist"),
    ("gs://no-such-bucket/x", "no-such-bucket"),
    ("s3://no-such-bucket/x", "no-such-bucket"),
)
READ_ONLY = (("https://127.0.0.1:9/run", "read-only"), ("http://127.0.0.1:9/run", "read-only"))


def restoring(address: str) -> list[str]:
    restore = "@mtf.checkpoints.settings.RestoreCheckpointConfig"
    return train(**{"checkpoint.restore": f"{restore}(path={address!r}, mode='specific')"})


def train(**settings: Any) -> list[str]:
    return small.arguments("text.txt", **{"train_steps": 2, "model_dir": "run", **settings})


# How a command takes an address.
PLACES: dict[str, tuple[Callable[[list[str]], int], Callable[[str], list[str]]]] = {
    "checkpoint.restore.path": (run_main, restoring),
    "model_dir": (run_main, lambda address: train(model_dir=address)),
    "data.files": (run_main, lambda address: train(**{"data.files": address})),
    "--from": (run_main, lambda address: ["--from", address]),
    "convert": (convert_main, lambda address: [address, "out", "--to", "hf"]),
    "status": (status_main, lambda address: [address]),
}
WRITES = ("model_dir",)


@pytest.fixture
def refused(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str], str]:
    """Runs a command with an address, which it must refuse; returns the message."""
    small.write_text(tmp_path)

    def call(place: str, address: str) -> str:
        main, arguments = PLACES[place]
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        status = main(arguments(address))
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (status, out, len(lines)) == (2, "", 1), (status, out, err)
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("address", "words"), SCHEMES)
def test_misspelled_addresses(refused: Any, place: str, address: str, words: str) -> None:
    assert words in refused(place, address)


@pytest.mark.parametrize("place", [place for place in PLACES if place not in WRITES])
@pytest.mark.parametrize(("address", "words"), MISSING)
def test_missing_files(refused: Any, place: str, address: str, words: str) -> None:
    message = refused(place, address)
    assert address in message, message
    assert words in message or "no run directory" in message or "not exist" in message, message


@pytest.mark.parametrize("place", WRITES)
@pytest.mark.parametrize(("address", "words"), READ_ONLY)
def test_writing_to_https(refused: Any, place: str, address: str, words: str) -> None:
    assert words in refused(place, address)


@pytest.mark.parametrize("address", ["gs://no-such-bucket/run", "s3://no-such-bucket/run"])
def test_runs_in_a_missing_bucket(refused: Any, address: str) -> None:
    assert "there is no bucket 'no-such-bucket'" in refused("model_dir", address)


@contextlib.contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """Serves the same answer to every request; yields the address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *args: object) -> None:
            pass

    with stores.serving(Answer) as address:
        yield address


S3_ERROR = "<Error><Code>{}</Code><Message>{}</Message></Error>"
ANSWERS = (
    # (scheme, status, body, words)
    ("gs", 401, '{"error": {"message": "Anonymous caller does not have access"}}', "credentials"),
    ("gs", 403, '{"error": {"message": "Forbidden"}}', "access is denied"),
    ("s3", 403, S3_ERROR.format("AccessDenied", "Access Denied"), "access is denied"),
    ("s3", 403, S3_ERROR.format("InvalidAccessKeyId", "no such key"), "AWS_SECRET_ACCESS_KEY"),
    ("s3", 403, S3_ERROR.format("SignatureDoesNotMatch", "wrong secret"), "AWS_SECRET_ACCESS_KEY"),
)


@pytest.mark.parametrize("place", ["checkpoint.restore.path", "model_dir", "status"])
@pytest.mark.parametrize(("scheme", "status", "body", "words"), ANSWERS)
def test_refused_requests(
    refused: Any,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    scheme: str,
    status: int,
    body: str,
    words: str,
) -> None:
    with answering(status, body) as address:
        name = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}[scheme]
        monkeypatch.setenv(name, address)
        message = refused(place, f"{scheme}://bucket/run")
    assert f"{scheme}://bucket/run" in message
    assert words in message


def test_no_credentials_for_s3(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    message = refused("checkpoint.restore.path", "s3://bucket/run")
    assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in message


@pytest.mark.parametrize("user", ["", "anna:hunter2@"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_no_network(refused: Any, monkeypatch: pytest.MonkeyPatch, scheme: str, user: str) -> None:
    """What cannot be reached is not said to be missing, and a server's password is not shown."""
    name = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}[scheme]
    monkeypatch.setenv(name, f"http://{user}127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    message = refused("status", f"{scheme}://bucket/run")
    shown = "…@" if user else ""
    assert f"the store ({name}=http://{shown}127.0.0.1:9) cannot be reached" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("place", PLACES)
def test_addresses_with_a_password(refused: Any, place: str) -> None:
    message = refused(place, "https://anna:hunter2@127.0.0.1:9/text.txt")
    assert "contains a user name or password" in message
    assert "anna" not in message
    assert "hunter2" not in message


def test_no_network_for_https(refused: Any) -> None:
    message = refused("data.files", "https://127.0.0.1:9/text.txt")
    assert "https://127.0.0.1:9/text.txt: the store cannot be reached" in message


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_dry_run_looks_for_the_bucket(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    small.write_text(tmp_path)
    assert run_main([*train(model_dir=f"{scheme}://bukket/run"), "--dry-run"]) == 2
    assert (
        f"model_dir: {scheme}://bukket/run: there is no bucket 'bukket'" in capsys.readouterr().err
    )
    assert run_main([*train(model_dir=f"{scheme}://bucket/run"), "--dry-run"]) == 0
