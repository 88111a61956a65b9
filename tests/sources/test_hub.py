"""Without a network, reading from the hub fails at once, with a message that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.sources.datasets import MissingDatasetError, open_split
from mtf.data.sources.hub_stream import open_splits
from tests.sources.hub_server import Server, use

CLOSED = Server().address


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    pytest.importorskip("datasets")
    monkeypatch.delenv("MTF_DATA_DIR", raising=False)
    with use(Server(), tmp_path, monkeypatch):
        yield


def _check(message: str) -> None:
    assert f"{CLOSED} cannot be reached (" in message
    assert "HF_ENDPOINT" in message
    assert "HTTPS_PROXY" in message


def test_a_task_and_a_stream() -> None:
    with pytest.raises(MissingDatasetError) as caught:
        open_split("super_glue", "rte", "validation")
    _check(str(caught.value))
    assert "put it at DIR/super_glue/rte/validation.parquet" in str(caught.value)
    assert "MTF_DATA_DIR=DIR" in str(caught.value)
    with pytest.raises(UserError) as refused:
        open_splits("allenai/c4", None, "train", columns={"text_key": "text"})
    _check(str(refused.value))
    assert "data.data_files" in str(refused.value)


def test_offline_mode_contacts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    monkeypatch.setattr("urllib.request.urlopen", None)
    with pytest.raises(UserError) as caught:
        open_splits("allenai/c4", None, "train", columns={"text_key": "text"})
    assert " HF_HUB_OFFLINE is set, so only previously downloaded data is ava" in str(caught.value)
    assert CLOSED not in str(caught.value)
