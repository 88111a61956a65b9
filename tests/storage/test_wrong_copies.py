"""Copies of files that are replaced while they are copied, or that servers send wrongly."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

import pytest

from mtf.storage import as_path, copies
from mtf.storage.errors import StorageError
from mtf.storage.pool import ReadingPool
from mtf.storage.remote import RemotePath
from tests import stores
from tests.storage.conftest import Servers, forget_connections

OLD, NEW = b"old content" * 1000, b"new content" * 1000  # of the same size


def copied(
    scheme: str, servers: Servers, monkeypatch: pytest.MonkeyPatch, kind: str, times: int
) -> bytes:
    """Copies a file that has `OLD` through a proxy that has a fault; returns the copy's content."""

    place = ("bucket", "x")
    server, put = {
        "gs": (servers.gcs, functools.partial(stores.put_gcs, servers.gcs, *place)),
        "s3": (servers.s3, functools.partial(stores.put_s3, servers.s3, *place)),
        "http": (servers.http, (servers.http_directory / "x").write_bytes),
    }[scheme]
    put(OLD)
    fault = stores.Fault(kind, 0, times, functools.partial(put, NEW))
    with stores.faulty(server, fault) as address:
        for name, value in stores.variables(address, address).items():
            monkeypatch.setenv(name, value)
        forget_connections()
        path = f"{address}/x" if scheme == "http" else f"{scheme}://bucket/x"
        try:
            return copies.local_copy(as_path(path)).read_bytes()
        finally:
            forget_connections()


def test_a_file_that_is_replaced_is_copied_again(
    scheme: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copied(scheme, servers, monkeypatch, "replaced", 1) == NEW


def test_a_file_that_is_replaced_while_it_is_read_in_place(servers: Servers) -> None:
    names, path = ("model/a/x", "model/b/x"), as_path(f"{servers.http}/model")
    for changed in (*names, None):
        for name in names:
            (servers.http_directory / name).parent.mkdir(parents=True, exist_ok=True)
            (servers.http_directory / name).write_bytes(OLD)
        refused = pytest.raises(StorageError, match=f"{str(changed)[6:]} changed while the")
        with refused if changed else contextlib.nullcontext(), copies.unchanged(path):
            assert [(path / name[6:]).read_bytes() for name in names] == [OLD, OLD]
            if changed:
                (servers.http_directory / changed).write_bytes(NEW)


@pytest.mark.parametrize("kind", ["truncated", "too_long"])
def test_a_copy_of_another_size_is_made_again_or_refused(
    kind: str, scheme: str, servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert copied(scheme, servers, monkeypatch, kind, 1) == OLD
    for file in (tmp_path / "copies").rglob("*x*"):
        file.unlink()
    with pytest.raises(StorageError, match="the file changes while it is copied, or the server"):
        copied(scheme, servers, monkeypatch, kind, 1000)
    assert not [file for file in (tmp_path / "copies").rglob("*") if file.is_file()]


def test_a_flipped_bit_is_noticed_where_the_store_has_a_checksum(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copied("gs", servers, monkeypatch, "flipped", 1) == OLD


def test_a_changed_file_of_a_server_without_etag_is_copied_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.Files, "has_tags", False)
    file = servers.http_directory / "y"
    for content, seconds in ((OLD, 1_000_000), (NEW, 2_000_000)):
        file.write_bytes(content)
        os.utime(file, (seconds, seconds))
        assert copies.local_copy(as_path(f"{servers.http}/y")).read_bytes() == content


def test_no_job_starts_after_one_has_failed() -> None:
    started: list[int] = []

    def job(number: int) -> None:
        started.append(number)
        raise StorageError("gs://bucket", "no answer", "network")

    with pytest.raises(StorageError, match="no answer"), ReadingPool(1) as pool:
        list(pool.map(job, range(50)))
    assert started == [0]


@pytest.mark.parametrize("store", ["gs", "s3"], indirect=True)
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_refused(store: RemotePath) -> None:
    (store / "checkpoint_7" / "x").write_bytes(OLD)
    with copies.unchanged(store / "checkpoint_7"):
        (store / "checkpoint_7" / "metrics" / "metrics").write_bytes(b"{}")
    with (
        pytest.raises(StorageError, match="x changed while the directory was read"),
        copies.unchanged(store / "checkpoint_7"),
    ):
        (store / "checkpoint_7" / "x").write_bytes(NEW)
