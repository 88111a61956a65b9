"""Inference with models, files and results in stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtf
from conversion.orbax import COMMITTED
from mtf.cli import fetch
from mtf.inference.decoding.settings import DecodingConfig
from mtf.jobs import Infer
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests.inference import models
from tests.storage.conftest import put


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_run(tmp_path_factory.mktemp("run") / "run")


def job(checkpoint: Any, files: Any, out: Any, **settings: Any) -> Infer:
    return Infer(
        checkpoint=str(checkpoint),
        files=str(files),
        output_dir=str(out),
        decoding=DecodingConfig(max_length=6),
        task_feature_lengths={"inputs": 16, "targets": 8},
        batch_size=2,
        checkpoint_period=1,
        **settings,
    )


def contents(folder: Path | RemotePath) -> dict[str, bytes]:
    """The results; the description beside them names the checkpoint, which differs."""
    found = folder.rglob("*.jsonl*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


def test_files_and_results_may_be_in_a_store(store: RemotePath, run: Path, tmp_path: Path) -> None:
    put(run, store / "run")
    (store / "run/checkpoints/checkpoint_7" / COMMITTED).write_text("")
    lines = "".join(f"inputs {i}\ttargets {i}\n" for i in range(5))
    (tmp_path / "pairs.tsv").write_text(lines)
    (store / "files/pairs.tsv").write_text(lines)
    job(run, tmp_path / "pairs.tsv", tmp_path / "out").run()
    result = job(store / "run", store / "files/*.tsv", store / "out").run()
    assert [str(file) for file in result.files] == [
        f"{store}/out/pairs-predict.jsonl-00000-of-00001"
    ]
    assert contents(store / "out") == contents(tmp_path / "out")
    assert len(contents(tmp_path / "out")) == 1
    # Without output_dir, results are beside the checkpoints of the run.
    beside = Infer(
        **{**vars(job(store / "run", store / "files/*.tsv", "")), "output_dir": None}
    ).run()
    assert str(beside.files[0]).startswith(f"{store}/run/inference/")


def test_interrupted_results_are_continued(
    store: RemotePath, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "inputs.txt"
    file.write_text("".join(f"inputs {i}\n" for i in range(7)))
    job(run, file, tmp_path / "out").run()
    opened, written, broken = RemotePath.open, [], True

    @contextlib.contextmanager
    def watched(path: RemotePath, mode: str = "r", *rest: Any, **more: Any) -> Iterator[Any]:
        if "w" in mode:
            written.append(path.name)
            if broken and path.name.startswith("00002."):
                raise StorageError(path, "the store cannot be reached", "network")
        with opened(path, mode, *rest, **more) as file:
            yield file

    monkeypatch.setattr(RemotePath, "open", watched)
    with pytest.raises(Exception, match=r"output_dir: .*cannot be reached"):
        job(run, file, store / "out").run()
    broken = False
    written.clear()
    job(run, file, store / "out").run()
    parts = [name.split(".")[0] for name in written if name.startswith("000")]
    assert parts == ["00002", "00003"]
    assert contents(store / "out") == contents(tmp_path / "out")
    assert not [name for name in (store / "out").infos() if "tmp" in name]


@pytest.mark.slow
def test_a_model_is_loaded_from_a_store_and_from_its_copy(
    store: RemotePath, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(run, store / "run")
    (store / "run/checkpoints/checkpoint_7" / COMMITTED).write_text("")
    expected = mtf.load(run).score("inputs", "targets")
    assert mtf.load(f"{store}/run").score("inputs", "targets") == expected
    assert fetch.main([f"{store}/run"]) == 0
    model = mtf.load(f"{store}/run/checkpoints/checkpoint_7")
    assert isinstance(model.loaded.checkpoint.path, Path)
    assert model.score("inputs", "targets") == expected
