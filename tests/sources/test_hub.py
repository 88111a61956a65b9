"""Without a network, reading from the hub fails at once, with a message that says so."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from mtf.base.errors import UserError
from mtf.data.sources import hub as hub_access
from mtf.data.sources.datasets import MissingDatasetError, open_split
from mtf.data.sources.hub_stream import open_splits

CLOSED = "http://127.0.0.1:9"  # The port `discard`, on which nothing listens.


@pytest.fixture
def without_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A URL without a hub, and a stand-in for the package `datasets`."""
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    for proxy in ("all_proxy", "http_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    for variable in ("MTF_DATA_DIR", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    datasets = types.ModuleType("datasets")
    constants = types.ModuleType("huggingface_hub.constants")
    hub = types.ModuleType("huggingface_hub")
    datasets.config = types.SimpleNamespace(HF_HUB_OFFLINE=False)
    datasets.exceptions = types.SimpleNamespace(DatasetsError=KeyError)
    constants.HF_HUB_OFFLINE = False
    hub.constants = constants

    def load_dataset(*_: object, **__: object) -> None:
        assert datasets.config.HF_HUB_OFFLINE, "it would try for a minute"
        assert constants.HF_HUB_OFFLINE
        raise ConnectionError("Couldn't reach it on the Hub (OfflineModeIsEnabled)")

    datasets.load_dataset = load_dataset
    for module in (datasets, hub, constants):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hub_access.why_unreachable.cache_clear()
    yield datasets
    hub_access.why_unreachable.cache_clear()


def _check(message: str) -> None:
    assert f"{CLOSED} cannot be reached (" in message
    assert "HF_ENDPOINT" in message
    assert "HTTPS_PROXY" in message


def test_a_task_and_a_stream(without_hub: types.ModuleType) -> None:
    with pytest.raises(MissingDatasetError) as caught:
        open_split("super_glue", "rte", "validation")
    _check(str(caught.value))
    assert "put it at DIR/super_glue/rte/validation.parquet" in str(caught.value)
    assert "MTF_DATA_DIR=DIR" in str(caught.value)
    with pytest.raises(UserError) as refused:
        open_splits("allenai/c4", None, "train", columns={"text_key": "text"})
    _check(str(refused.value))
    assert "data.data_files" in str(refused.value)


def test_offline_mode_contacts_nothing(
    without_hub: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "true")
    monkeypatch.setattr("urllib.request.urlopen", None)
    with pytest.raises(UserError) as caught:
        open_splits("allenai/c4", None, "train", columns={"text_key": "text"})
    assert " HF_HUB_OFFLINE is set, so only previously downloaded data is ava" in str(caught.value)
    assert CLOSED not in str(caught.value)
