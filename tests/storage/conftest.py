"""Servers of object stores, and the places in them that a test may use."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conversion.orbax import COMMITTED
from mtf.storage import remote
from mtf.storage.remote import RemotePath
from tests import made_up, stores

BUCKET = "bucket"
ORIGINALS = ("t5-data", "myv4-bucket")  # The buckets in the recipes' addresses.


@dataclasses.dataclass(frozen=True)
class Servers:
    """The addresses of the servers, and the directory that the HTTP server serves."""

    gcs: str
    s3: str
    http: str
    http_directory: Path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model file."""
    file = tmp_path_factory.mktemp("model") / "sentencepiece.model"
    texts = ["hello world, this is a text about words"] * 20
    file.write_bytes(made_up.sentencepiece_model(texts, num_pieces=40))
    return file


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    for package in ("gcsfs", "s3fs", "gcp_storage_emulator", "moto"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    served = tmp_path_factory.mktemp("served")
    with (
        stores.gcs(BUCKET, *ORIGINALS) as gcs,
        stores.s3(BUCKET) as s3,
        stores.http_files(served) as http,
    ):
        yield Servers(gcs, s3, http, served)


def forget_connections() -> None:
    """Forgets connections, which keep the addresses of the servers."""
    remote.filesystem.cache_clear()
    # Not imported here, because mtf sets variables before it imports them.
    for module, name in (("gcsfs", "GCSFileSystem"), ("s3fs", "S3FileSystem")):
        if module in sys.modules:
            getattr(sys.modules[module], name).clear_instance_cache()


@pytest.fixture
def servers(running: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Servers]:
    """The servers, which all addresses use; local copies are in `tmp_path/copies`."""
    for name, value in stores.variables(running.gcs, running.s3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MTF_CACHE", str(tmp_path / "copies"))
    monkeypatch.chdir(tmp_path)
    forget_connections()
    yield running
    forget_connections()
    # An address is never taken for a local folder.
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(":")]


@pytest.fixture(params=["gs", "s3"])
def store(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> RemotePath:
    """An empty directory in a store."""
    return RemotePath(f"{request.param}://{BUCKET}/{tmp_path.name}")


@pytest.fixture(params=["gs", "s3", "http"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def put(source: Path, target: RemotePath) -> None:
    """Copies a file, or the files below a directory, to a store."""
    files = [file for file in source.rglob("*") if file.is_file()] or [source]
    for file in files:
        inside = file.relative_to(source).as_posix()
        (target if file == source else target / inside).upload(file)


def put_run(run: Path, target: RemotePath) -> None:
    """Copies a run to a store, where a marker completes its checkpoints."""
    put(run, target)
    for checkpoint in (run / "checkpoints").iterdir():
        (target / "checkpoints" / checkpoint.name / COMMITTED).write_text("")
