"""Paths, files and copies in stores behave like those on this machine."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conversion
from conversion import safetensors_file
from mtf import storage
from mtf.base.writing import write_failure
from mtf.cli.convert.command import main as convert_main
from mtf.storage import as_path, copies, remote
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests import small, stores
from tests.conversion import writers
from tests.storage.conftest import put

PARAMETERS = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)


pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(params=["gs", "s3"])
def scheme(request: pytest.FixtureRequest) -> str:
    """The scheme of a store that can be written to."""
    return str(request.param)


def upload(folder: Path, address: str) -> RemotePath:
    """Uploads the files of a folder; returns the address."""
    put(folder, target := RemotePath(address))
    return target


def test_names_are_those_of_pathlib() -> None:
    path = as_path("gs://bucket/a/b.tar.gz")
    same = Path("/bucket/a/b.tar.gz")
    assert (path.name, path.stem, path.suffix) == (same.name, same.stem, same.suffix)
    assert str(path.parent / "c" / "../d") == "gs://bucket/a/d"
    assert [str(each) for each in path.parents] == ["gs://bucket/a", "gs://bucket"]
    assert as_path("~/x") == Path.home() / "x"


def test_an_address_is_never_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = as_path("gs://bucket/x")
    for function in (os.fspath, os.mkdir, open):
        with pytest.raises(TypeError):
            function(path)
    assert list(tmp_path.iterdir()) == []


def test_files(scheme: str, tmp_path: Path) -> None:
    base = as_path(f"{scheme}://bucket/files")
    assert not base.exists()
    (base / "a.txt").write_text("ä")
    (base / "b" / "c.bin").write_bytes(b"0123456789")
    assert (base / "a.txt").read_text() == "ä"
    assert [path.name for path in base.iterdir()] == ["a.txt", "b"]
    assert [path.name for path in base.glob("*.txt")] == ["a.txt"]
    assert [str(path) for path in base.rglob("*.bin")] == [f"{base}/b/c.bin"]
    assert base.is_dir() and not base.is_file() and (base / "a.txt").is_file()
    assert isinstance(base, RemotePath)
    assert (base / "b" / "c.bin").read_range(2, 5) == b"234"
    with (base / "d.txt").open("w") as file:
        file.write("one\ntwo\n")
    with (base / "d.txt").open() as file:
        assert list(file) == ["one\n", "two\n"]
    (base / "a.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (base / "a.txt").read_bytes()
    (base / "a.txt").unlink(missing_ok=True)
    storage.remove_tree(base)
    assert not base.exists()


def test_a_failed_write_leaves_nothing(scheme: str) -> None:
    path = as_path(f"{scheme}://bucket/failed.txt")
    with pytest.raises(ZeroDivisionError), path.open("w") as file:
        file.write("half")
        raise ZeroDivisionError
    assert not path.exists()


def test_local_copies_are_renewed(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTF_CACHE", str(tmp_path))
    base = as_path(f"{scheme}://bucket/copied")
    content = bytes(range(100))
    (base / "x" / "file").write_bytes(content)
    (base / "y").write_bytes(b"y")
    copy = copies.local_copy(base)
    assert copy == tmp_path / scheme / "bucket" / "copied"
    assert (copy / "x" / "file").read_bytes() == content
    (base / "y").write_bytes(b"z")
    (base / "x" / "file").unlink()
    assert (copies.local_copy(base) / "y").read_bytes() == b"z"
    assert not (copy / "x" / "file").exists()


def test_errors_of_a_reader_are_its_own(scheme: str) -> None:
    path = as_path(f"{scheme}://bucket/read.txt")
    path.write_text("one")
    with pytest.raises(ValueError, match="line 404 cannot be resolved"), path.open() as file:
        raise ValueError(f"{file.read()}: line 404 cannot be resolved")


def test_only_errors_of_stores_are_failed_writes(scheme: str) -> None:
    directory = as_path(f"{scheme}://bucket/run")
    for error in (
        ValueError("shapes (404, 512) and (403, 512) cannot be resolved"),
        RuntimeError("Timeout of a barrier"),
        ConnectionError("the hub: Connection refused"),
    ):
        assert write_failure(error, directory) is None
    denied = ValueError(f"PERMISSION_DENIED: Error writing {directory}/checkpoints/x")
    assert "access is denied" in str(write_failure(denied, directory))
    for name in (f"{directory}/checkpoints/x", '"run/checkpoints/x"'):  # TensorStore's for S3
        gone = ValueError(
            f"ABORTED: Error reading {name}: All 32 retry attempts failed: CURL error Could not "
            "connect to server: Failed to connect to 127.0.0.1 port 40523 after 0 ms"
        )
        assert "cannot be reached" in str(write_failure(gone, directory))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs", "s3", "http"])
def test_t5x_checkpoints_are_read_in_place(scheme: str, tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS, kvstore="gcs")
    if scheme == "http":
        with stores.http_files(tmp_path) as address:
            writers.assert_holds(f"{address}/{path.name}", PARAMETERS)
    else:
        upload(path, f"{scheme}://bucket/models/checkpoint_7")
        for address in (f"{scheme}://bucket/models/checkpoint_7", f"{scheme}://bucket/models"):
            writers.assert_holds(address, PARAMETERS)
            assert conversion.open_checkpoint(address).step == 7


def test_a_missing_chunk_is_refused(tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS)
    (path / "target.token_embedder.embedding" / "1.0").unlink()
    address = str(upload(path, "gs://bucket/incomplete/checkpoint_7"))
    with pytest.raises(conversion.IncompleteCheckpoint, match="lacks 1 of its 2 chunks"):
        conversion.open_checkpoint(address)
    with stores.http_files(tmp_path) as http:  # It cannot list files.
        tensors = conversion.open_checkpoint(f"{http}/{path.name}").parameters()
        with pytest.raises(conversion.ConversionError, match="token_embedder/embedding"):
            tensors["token_embedder/embedding"].read()


def test_an_uncommitted_checkpoint_is_skipped(scheme: str, tmp_path: Path) -> None:
    base = f"{scheme}://bucket/uncommitted"
    upload(writers.write_t5x(tmp_path, PARAMETERS), f"{base}/checkpoint_7")
    (as_path(base) / "checkpoint_9" / "state" / "_METADATA").write_text("{}")
    assert [step for step, _ in conversion.list_checkpoints(base)] == [7]


def test_exports_have_the_bytes_of_local_ones(scheme: str, tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS)
    source = upload(path, f"{scheme}://bucket/to_export/checkpoint_7")
    target = as_path(f"{scheme}://bucket/exported")
    for checkpoint, out in ((path, tmp_path / "hf"), (source, target)):
        assert convert_main([str(checkpoint), str(out), "--to", "hf", "--vocabulary", "byt5"]) == 0
    names = sorted(file.name for file in (tmp_path / "hf").iterdir())
    assert [file.name for file in target.iterdir()] == names
    for name in names:
        content = (target / name).read_bytes().replace(str(source).encode(), str(path).encode())
        assert content == (tmp_path / "hf" / name).read_bytes(), name
    assert convert_main([str(source), str(target), "--to", "hf"]) == 2  # It is not empty.
    again = conversion.open_checkpoint(str(target))
    assert again.layout == "huggingface" and len(again.parameters()) == len(PARAMETERS)


def test_an_export_needs_no_space_on_this_machine(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writers.write_t5x(tmp_path / "t5x", PARAMETERS)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    target = as_path(f"{scheme}://bucket/no_space")
    assert convert_main([str(path), str(target), "--to", "hf"]) == 0
    assert conversion.open_checkpoint(target).layout == "huggingface"
    assert [each.name for each in tmp_path.iterdir() if each.name != "copies"] == ["t5x"]


@pytest.mark.parametrize("cleans_up", [True, False])
def test_a_failed_export_is_not_complete_and_is_written_again(
    scheme: str, cleans_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writers.write_t5x(tmp_path / "t5x", PARAMETERS)
    target = as_path(f"{scheme}://bucket/failed_{cleans_up}")
    rows, files = safetensors_file.row_major, itertools.count(1)

    def failing(*arguments: Any) -> Iterator[memoryview]:
        fails = next(files) == 2
        for number, part in enumerate(rows(*arguments)):
            if fails and number == 3:
                raise StorageError(target, "the store cannot be reached", "network")
            yield part

    arguments = [str(path), str(target), "--to", "hf", "--vocabulary", "byt5"]
    with monkeypatch.context() as patch:
        patch.setattr("conversion.safetensors_file.row_major", failing)
        if not cleans_up:  # As after `kill -9`.
            patch.setattr(RemotePath, "rmtree", lambda path: None)
        assert convert_main([*arguments, "--max-shard-size", "20KB"]) == 2
    assert target.exists() == (not cleans_up)
    if not cleans_up:
        names = {file.name for file in target.iterdir()}
        assert any("-00001-" in name for name in names)
        assert not any("-00002-" in name for name in names)
        with pytest.raises(conversion.IncompleteCheckpoint, match=r"has no file config\.json"):
            conversion.open_checkpoint(target)
        (target / "mine.txt").write_text("mine")
        assert convert_main(arguments) == 2  # A file that is not of an export stays.
        (target / "mine.txt").unlink()
    assert convert_main(arguments) == 0
    assert convert_main([str(path), str(tmp_path / "hf"), *arguments[2:]]) == 0
    names = {file.name for file in (tmp_path / "hf").iterdir()}
    assert {file.name for file in target.iterdir()} == names
    for name in names:
        assert (target / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name


@pytest.mark.slow
def test_parts_of_a_file_appear_together(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BYTES_OF_PART", 5 * 2**20)
    content = np.random.default_rng(0).bytes(12_345_678)
    path = as_path(f"{scheme}://bucket/parts.bin")

    with path.open("wb") as file:
        for start in range(0, len(content), 1_000_001):
            assert not path.exists()
            file.write(content[start : start + 1_000_001])
    assert path.read_bytes() == content
    path.unlink()

    with pytest.raises(ZeroDivisionError), path.open("wb") as file:
        file.write(content)
        raise ZeroDivisionError
    gc.collect()
    assert not path.exists()


@pytest.mark.slow
def test_runs_end_like_local_ones(scheme: str, tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    settings = {"train_steps": 4, "trainer.eval_period": 2, "checkpoint.save.period": 2}
    for run_dir in ("local", f"{scheme}://bucket/run"):
        small.run(small.arguments(text, **settings, model_dir=run_dir), tmp_path)
        small.run(["--from", run_dir, "--set", "train_steps=6"], tmp_path)
    small.assert_same_end(as_path(f"{scheme}://bucket/run"), tmp_path / "local", 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local", "text.txt"]
    events = as_path(f"{scheme}://bucket/run/train").glob("events*")
    assert len(list(events)) == 2
