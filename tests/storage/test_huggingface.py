"""Hugging Face directories in stores and on web servers are read in place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import conversion
import mtf
from mtf import storage
from mtf.base.writing import JOB_FILE
from mtf.cli import fetch
from mtf.cli.convert.command import main as convert_main
from mtf.storage import as_path, remote
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests import stores
from tests.conversion import writers
from tests.storage.conftest import BUCKET, Servers, put
from tests.storage.test_fetch import unreachable

PARAMETERS = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture
def local(tmp_path: Path, servers: Servers) -> Path:
    """A Hugging Face directory of a ByT5 with three files of weights."""
    source = writers.write_t5x(tmp_path / "t5x", PARAMETERS)
    options = ["--to", "hf", "--vocabulary", "byt5", "--max-shard-size", "50KB"]
    assert convert_main([str(source), str(tmp_path / "model"), *options]) == 0
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    return tmp_path / "model"


@pytest.fixture
def address(scheme: str, local: Path, servers: Servers) -> str:
    """The address of the same directory."""
    name = local.parent.name
    if scheme == "http":
        shutil.copytree(local, servers.http_directory / name)
        return f"{servers.http}/{name}"
    put(local, RemotePath(f"{scheme}://{BUCKET}/{name}"))
    return f"{scheme}://{BUCKET}/{name}"


def test_tensors_are_read_in_place(address: str, local: Path, tmp_path: Path) -> None:
    here, there = (conversion.open_checkpoint(path) for path in (local, address))
    assert there.layout == "huggingface" and there.described == here.described
    assert there.tensors.keys() == here.tensors.keys()
    for name, tensor in here.tensors.items():
        np.testing.assert_array_equal(there.tensors[name].read(), tensor.read())
    embedding = "target/token_embedder/embedding"
    rows = there.tensors[embedding].read((slice(7, 300), slice(None)))
    np.testing.assert_array_equal(rows, here.tensors[embedding].read()[7:300])
    assert not (tmp_path / "copies").exists()
    columns = there.tensors[embedding].read((slice(None), slice(3, 9)))
    np.testing.assert_array_equal(columns, here.tensors[embedding].read()[:, 3:9])
    copied = [path.name for path in (tmp_path / "copies").rglob("*.safetensors")]
    assert copied == ["model-00001-of-00004.safetensors"]


def test_opening_reads_no_weights(local: Path, servers: Servers, tmp_path: Path) -> None:
    put(local, RemotePath(f"gs://{BUCKET}/{tmp_path.name}"))
    stores.SERVED.clear()
    conversion.open_checkpoint(f"gs://{BUCKET}/{tmp_path.name}")
    weights = [end - begin for name, begin, end in stores.SERVED if name.endswith(".safetensors")]
    assert sum(weights) < 10_000


@pytest.mark.slow
def test_it_is_converted_and_loaded(address: str, local: Path, tmp_path: Path) -> None:
    for source, out in ((str(local), "a"), (address, "b")):
        assert convert_main([source, str(tmp_path / out), "--to", "hf"]) == 0
    for file in (tmp_path / "a").iterdir():
        if file.name not in ("README.md", JOB_FILE):  # These name the source.
            assert (tmp_path / "b" / file.name).read_bytes() == file.read_bytes(), file.name
    assert f"Source: `{address}`" in (tmp_path / "b" / "README.md").read_text()
    expected = mtf.load(local).score("inputs", "targets")
    assert mtf.load(address).score("inputs", "targets") == expected


@pytest.mark.parametrize("write", [writers.write_pytorch, writers.write_flax])
def test_other_weights_are_fetched(
    write: Callable[[Path], Path], servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if write is writers.write_pytorch:
        pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
    source = writers.write_t5x(tmp_path / "t5x", PARAMETERS)
    model = servers.http_directory / tmp_path.name
    options = ["--to", "hf", "--vocabulary", "byt5"]
    assert convert_main([str(source), str(model), *options]) == 0
    expected = mtf.load(model).score("inputs", "targets")
    write(model)
    address = f"{servers.http}/{tmp_path.name}"
    assert fetch.main([address]) == 0
    unreachable(monkeypatch)
    assert mtf.load(address).score("inputs", "targets") == expected


def test_wrong_directories_are_refused(
    address: str, local: Path, scheme: str, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = servers.http_directory / local.parent.name if scheme == "http" else None

    def replace(name: str, content: bytes | None) -> None:
        file = (directory or as_path(address)) / name
        file.unlink() if content is None else file.write_bytes(content)

    replace("checksums.json", None)
    name = "model-00002-of-00004.safetensors"
    whole = (local / name).read_bytes()
    for content, words in (
        (whole[:-4], "truncated or not a safetensors file: it has"),
        (b"x" * 100, "truncated or not a safetensors file"),
        (b"", "truncated or not a safetensors file"),
        (None, f"has no file {name}"),
    ):
        replace(name, content)
        with pytest.raises(conversion.IncompleteCheckpoint, match=words):
            conversion.open_checkpoint(address)
    replace("config.json", json.dumps({"model_type": "bert"}).encode())
    with pytest.raises(conversion.ConversionError, match="model_type is 'bert'"):
        conversion.open_checkpoint(address)
    capsys.readouterr()
    assert convert_main([f"{address}/none", "out", "--to", "hf"]) == 2
    assert f"{address}/none does not exist" in capsys.readouterr().err


def test_a_server_must_send_ranges(
    local: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.Files, "do_GET", stores.http.server.SimpleHTTPRequestHandler.do_GET)
    with stores.http_files(local) as address, pytest.raises(StorageError, match="range requests"):
        conversion.open_checkpoint(f"{address}/.")


def test_large_ranges_are_read_in_parts(
    scheme: str, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BYTES_OF_PART", 1000)
    content = np.random.default_rng(0).bytes(54_321)
    (servers.http_directory / f"{tmp_path.name}.bin").write_bytes(content)
    file = as_path(f"{servers.http}/{tmp_path.name}.bin")
    if scheme != "http":
        file = as_path(f"{scheme}://{BUCKET}/{tmp_path.name}.bin")
        file.write_bytes(content)
    assert isinstance(file, RemotePath)
    assert storage.read_range(file, 123, 54_000) == content[123:54_000]
