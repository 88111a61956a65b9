"""`python -m mtf fetch` copies checkpoints, which are then read without the store."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from mtf.checkpoints.restore import checkpoint_path
from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.cli import fetch
from mtf.storage import copies, remote
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests.conversion import writers
from tests.conversion.writers import assert_holds
from tests.storage.conftest import BUCKET, Servers, put

PARAMETERS = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every request to a store fail."""

    @functools.cache
    def refuse(scheme: str) -> None:
        raise StorageError(f"{scheme}://", "was asked", "network")

    monkeypatch.setattr(remote, "filesystem", refuse)


def test_a_released_checkpoint_is_copied_by_name(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = writers.write_t5x(tmp_path / "local", PARAMETERS, kvstore="gcs")
    address = "gs://t5-data/pretrained_models/t5x/mt5_lm_adapted/small/checkpoint_1100000"
    put(path, RemotePath(address))
    assert fetch.main(["mt5_lm_adapted/small"]) == 0
    assert f"It is now read in place of {address}." in capsys.readouterr().out
    unreachable(monkeypatch)
    assert_holds(address, PARAMETERS)
    copy = tmp_path / "copies/gs" / address.removeprefix("gs://")
    assert checkpoint_path(RestoreCheckpointConfig(address, mode="specific")) == copy


def test_the_latest_or_the_chosen_checkpoint_of_a_directory_is_copied(
    store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writers.write_t5x(tmp_path / "local", PARAMETERS)
    for step in (7, 9, 11):
        put(path, store / f"run/checkpoints/checkpoint_{step}")
    (store / "run/config.json").write_text("{}")
    assert fetch.main([f"{store}/run", "--step", "9"]) == 0
    assert fetch.main([f"{store}/run"]) == 0
    run = tmp_path / "copies" / store.protocol / store.path / "run"
    copied = {each.name for each in (run / "checkpoints").iterdir() if each.is_dir()}
    assert copied == {"checkpoint_9", "checkpoint_11"}
    assert (run / "config.json").read_text() == "{}"
    unreachable(monkeypatch)
    assert_holds(f"{store}/run/checkpoints/checkpoint_9", PARAMETERS)


@pytest.mark.slow
def test_a_checkpoint_of_mesh_tensorflow(
    store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (7, 8, 9):
        arrays = writers.mesh(PARAMETERS, step)
        put(writers.write_bundle(tmp_path / "local", arrays, step, num_files=2).parent, store)
    assert fetch.main([f"{store}/model.ckpt-7"]) == 0
    assert fetch.main([str(store), "--step", "8"]) == 0
    copied = {path.name for path in (tmp_path / "copies" / store.protocol / store.path).glob("m*")}
    ends = ("index", "data-00000-of-00002", "data-00001-of-00002")
    assert copied == {f"model.ckpt-{step}.{end}" for step in (7, 8) for end in ends}
    assert_holds(f"{store}/model.ckpt-9", PARAMETERS)  # in place
    unreachable(monkeypatch)
    for step in (7, 8):
        assert_holds(f"{store}/model.ckpt-{step}", PARAMETERS)


def test_a_cache_that_cannot_be_written_is_one_message(
    store: RemotePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(writers.write_t5x(tmp_path / "local", PARAMETERS), store / "checkpoint_7")
    (tmp_path / "file").touch()
    monkeypatch.setenv("MTF_CACHE", str(tmp_path / "file"))
    assert fetch.main([f"{store}/checkpoint_7"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: fetch: {tmp_path}/file/")
    assert ". Set MTF_CACHE to a writable directory" in error and error.count("\n") == 1


def test_an_interrupted_copy_is_not_used_and_is_continued(
    store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(writers.write_t5x(tmp_path / "local", PARAMETERS), store / "checkpoint_7")
    monkeypatch.setattr(copies, "_FILES_AT_ONCE", 1)
    copy, requests = copies._copy, []

    def failing(path: RemotePath, file: Path, info: dict[str, Any]) -> None:
        requests.append(copies._is_copied(file, info))
        if len(requests) == 6:
            raise StorageError(path, "gone", "network")
        copy(path, file, info)

    monkeypatch.setattr(copies, "_copy", failing)
    assert fetch.main([f"{store}/checkpoint_7"]) == 2
    assert copies.nearest_copy(store / "checkpoint_7") == store / "checkpoint_7"
    assert fetch.main([f"{store}/checkpoint_7"]) == 0
    # No file was copied twice, except the one that failed.
    assert requests.count(False) == len((store / "checkpoint_7").infos()) + 1
    unreachable(monkeypatch)
    assert_holds(f"{store}/checkpoint_7", PARAMETERS)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mt5_smal", "Did you mean mt5_small"),
        ("https://127.0.0.1:9/checkpoint_1", "the store cannot be reached"),
        ("HTTP/checkpoint_1", "cannot be listed over http://"),
        ("gs://bucket/none/checkpoint_1", "gs://bucket/none/checkpoint_1 does not exist"),
        ("gs://bukket/none/checkpoint_1", "there is no bucket 'bukket'"),
        ("gs:/bucket/x", "Did you mean gs://bucket/x?"),
    ],
)
def test_what_cannot_be_copied_is_named(
    name: str, problem: str, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert fetch.main([name.replace("HTTP", servers.http)]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize("name", ["../../../evil.txt", "a/../../evil.txt", "/evil.txt"])
def test_names_that_lead_out_of_the_copy_are_refused(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    store = RemotePath(f"s3://{BUCKET}/{tmp_path.name}")
    (store / "run/good.txt").write_text("good")
    store.fs.pipe_file(f"{store.path}/run/{name}", b"evil")
    with pytest.raises(StorageError, match="would be outside the local copy"):
        copies.local_copy(store / "run")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
