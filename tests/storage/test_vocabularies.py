"""Vocabularies in stores, and without a network or gcsfs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.storage.remote import RemotePath, filesystem
from tests.storage.conftest import BUCKET, Servers, put

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


def test_unknown_schemes_are_refused() -> None:
    with pytest.raises(UserError, match="unknown scheme; expected a local path or gs://"):
        _ = SentencePieceVocabulary("ftp://bucket/x").vocab_size
