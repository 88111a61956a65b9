"""Data files and vocabularies in stores."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.sources.files import open_files
from mtf.data.sources.text_files import open_examples
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.inference.opening import huggingface_vocabulary
from mtf.storage import copies
from mtf.storage.remote import RemotePath, filesystem
from tests import hub_models
from tests.storage.conftest import BUCKET, Servers, put

TEMPLATES = """\
dataset: toy
templates:
  one: !Template
    id: one
    name: one
    jinja: "{{question}} ||| {{answer}}"
    metadata: !TemplateMetadata
      original_task: true
"""


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory with lines, a mirror of a dataset, and templates."""
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "data"
    (folder / "lines/inside").mkdir(parents=True)
    for name in ("a", "b", "inside/c"):
        line = f'{{"inputs": "in {name}", "targets": "out {name}"}}\n'
        (folder / f"lines/{name}.jsonl").write_text(line)
    (folder / "lines/notes.md").write_text("not data")
    (folder / "mirror/toy").mkdir(parents=True)
    table = pyarrow.table({"question": ["1 + 1", "1 + 2"], "answer": ["2", "3"]})
    parquet.write_table(table, folder / "mirror/toy/train.parquet")
    (folder / "prompts/templates/toy").mkdir(parents=True)
    (folder / "prompts/templates/toy/templates.yaml").write_text(TEMPLATES)
    return folder


@pytest.fixture
def remote(store: RemotePath, local: Path) -> str:
    put(local, store)
    return str(store)


def test_patterns_find_the_files_of_a_store(local: Path, remote: str) -> None:
    for pattern in ("lines/*.jsonl", "lines/a.jsonl", "lines/**/*.jsonl", "lines/[ab].jsonl"):
        here = open_examples([f"{local}/{pattern}"], allow_empty_targets=False)
        there = open_examples([f"{remote}/{pattern}"], allow_empty_targets=False)
        assert [there[i] for i in range(len(there))] == [here[i] for i in range(len(here))]
        assert there.fingerprint == here.fingerprint
        assert list(open_files(f"{remote}/{pattern}")) == list(open_files(f"{local}/{pattern}"))


def test_two_processes_may_copy_a_file_and_its_directory(store: RemotePath) -> None:
    content = bytes(range(256)) * 100
    (store / "file").write_bytes(content)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(copies.local_copy, [store, store / "file"] * 2))
    assert (found[0] / "file").read_bytes() == found[1].read_bytes() == content
    assert not list(found[0].glob(".*.part"))


TEXT = "Hello, world."


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a package appear to be missing."""
    find = importlib.util.find_spec

    def found(name: str, *arguments: Any) -> Any:
        return None if name == package else find(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_a_model_in_a_store_has_the_ids_of_the_local_file(store: RemotePath, model: Path) -> None:
    put(model, store / "a folder/sentencepiece.model")
    remote = SentencePieceVocabulary(f"{store}/a folder/sentencepiece.model")
    local = SentencePieceVocabulary(str(model))
    assert remote.encode(TEXT) == local.encode(TEXT)
    assert remote.fingerprint() == local.fingerprint()
    assert remote.file.read_bytes() == model.read_bytes()


@pytest.mark.parametrize("name", ["Salesforce/codet5-base", "google/ul2"])
def test_a_tokenizer_in_a_store_has_the_ids_of_the_local_one(
    store: RemotePath, name: str, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    hub_models.write_tokenizer(tmp_path / "local", name)
    put(tmp_path / "local", store / "remote")
    remote, local = (
        huggingface_vocabulary(folder, 1152) for folder in (store / "remote", tmp_path / "local")
    )
    assert remote.path.startswith(str(store))
    assert remote.encode(TEXT) == local.encode(TEXT)
    assert remote.fingerprint() == local.fingerprint()


def test_a_model_is_read_over_https(servers: Servers, model: Path, tmp_path: Path) -> None:
    (servers.http_directory / "sentencepiece.model").write_bytes(model.read_bytes())
    remote = SentencePieceVocabulary(f"{servers.http}/sentencepiece.model")
    assert remote.encode(TEXT) == SentencePieceVocabulary(str(model)).encode(TEXT)
    assert remote.file.is_relative_to(tmp_path / "copies")


def test_a_model_is_downloaded_once(
    servers: Servers, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = RemotePath(f"gs://{BUCKET}/once.model")
    put(model, address)
    first = SentencePieceVocabulary(str(address)).file
    without("gcsfs", monkeypatch)
    filesystem.cache_clear()
    assert SentencePieceVocabulary(str(address)).file == first


def test_without_gcsfs_the_message_says_what_to_install_or_where_to_put_a_copy(
    servers: Servers, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without("gcsfs", monkeypatch)
    filesystem.cache_clear()
    vocabulary = SentencePieceVocabulary("gs://bucket/no/network.model")
    place = tmp_path / "copies/gs/bucket/no/network.model"
    with pytest.raises(UserError, match=rf"pip install 'mtf-jax\[gcs\]'.*put a copy at {place}"):
        _ = vocabulary.vocab_size
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(model.read_bytes())
    assert vocabulary.encode(TEXT) == SentencePieceVocabulary(str(model)).encode(TEXT)
