"""Models of the Hugging Face hub are converted and loaded by their names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtf
from mtf.base.errors import UserError
from mtf.base.writing import JOB_FILE
from mtf.cli.convert.command import main as convert_main
from mtf.data.sources.hub import model_name
from tests.conversion import writers
from tests.sources import hub_server

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: torch)")

NAME = "owner/small-model"
SMALL = {"config.json", "generation_config.json", "checksums.json"}
SMALL |= {"tokenizer_config.json", "tokenizer.json"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A ByT5 in safetensors, in three files, with other files that are not needed."""
    parameters = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)
    source, out = writers.write_t5x(tmp_path / "t5x", parameters), tmp_path / "model"
    options = ["--to", "hf", "--vocabulary", "byt5", "--max-shard-size", "90KB"]
    assert convert_main([str(source), str(out), *options]) == 0
    for name in ("tf_model.h5", "pytorch_model.bin", "README.md"):
        (out / name).write_bytes(b"not read")
    return out


@pytest.fixture
def hub(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[hub_server.Server]:
    monkeypatch.chdir(tmp_path)
    with (
        hub_server.serve({NAME: model}) as server,
        hub_server.use(server, tmp_path / "cache", monkeypatch),
    ):
        yield server


@pytest.mark.parametrize("name", [NAME, f"hf://{NAME}", f"{NAME}@main"])
def test_it_is_converted(name: str, hub: hub_server.Server, model: Path, tmp_path: Path) -> None:
    for source, out in ((name, "a"), (str(model), "b")):
        assert convert_main([source, str(tmp_path / out), "--to", "hf"]) == 0
    card = (tmp_path / "a" / "README.md").read_text()
    assert f"* Source: `{name}` (Hugging Face)" in card
    assert f"# {name.rpartition('/')[2]}\n" in card
    files = {file.name for file in (tmp_path / "b").iterdir()}
    assert {file.name for file in (tmp_path / "a").iterdir()} == files
    files -= {"README.md", JOB_FILE}
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    weights = {file.name for file in model.glob("model*")}
    assert len(weights) > 2
    assert set(hub.downloads) - SMALL == weights


def test_it_is_inspected_compared_and_loaded(
    hub: hub_server.Server, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert_main(["--compare", NAME, str(model)]) == 0
    assert convert_main(["--inspect", NAME]) == 0
    assert "file: shared.weight" in capsys.readouterr().out
    expected = mtf.load(model).score("inputs", "targets")
    assert mtf.load(NAME).score("inputs", "targets") == expected


def test_what_was_downloaded_is_read_without_the_hub(
    hub: hub_server.Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert convert_main([NAME, str(tmp_path / "a"), "--to", "hf"]) == 0
    with hub_server.use(hub_server.Server(), tmp_path / "cache", monkeypatch):
        assert convert_main([NAME, str(tmp_path / "b"), "--to", "hf"]) == 0
        assert convert_main(["owner/another", str(tmp_path / "c"), "--to", "hf"]) == 2
    *_, error = capsys.readouterr().err.splitlines()  # after progress bars
    assert error.startswith("error: owner/another does not exist locally. The Hugging Face hub ")
    assert "cannot be reached" in error
    assert not (tmp_path / "c").exists()


def test_other_repositories_are_refused(
    hub: hub_server.Server, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert_main(["owner/another", "out", "--to", "hf"]) == 2
    assert "cannot provide the model owner/another" in capsys.readouterr().err
    assert convert_main([f"{NAME}@v2", "out", "--to", "hf"]) == 2
    assert f"the model {NAME} at revision v2" in capsys.readouterr().err
    for file in (*model.glob("model*"), model / "pytorch_model.bin"):
        file.unlink()
    assert convert_main([NAME, "out", "--to", "hf"]) == 2
    assert "it has no weights; expected one of model.safetensors" in capsys.readouterr().err
    with pytest.raises(UserError, match="owner/another does not exist locally"):
        mtf.load("owner/another")
    assert not (tmp_path / "out").exists()


def test_paths_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_name("google/flan-t5-small") == ("google/flan-t5-small", None)
    assert model_name("hf://google/flan-t5-small@abc") == ("google/flan-t5-small", "abc")
    for path in ("runs", "./runs/a", "../runs", "/runs/a", "runs/a/b", "gs://bucket/a", "~/a"):
        assert model_name(path) is None
    (tmp_path / "google").mkdir()
    assert model_name("google/flan-t5-small") is None
    assert model_name("hf://google/flan-t5-small") is not None
    shutil.rmtree(tmp_path / "google")
