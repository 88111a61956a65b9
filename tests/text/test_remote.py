"""Vocabularies in Google Cloud Storage: downloaded once, checked, and found again."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.errors import UserError
from mtf.text.remote import local_copy
from mtf.text.vocabularies import SentencePieceVocabulary

CONTENT = b"pieces"
ADDRESS = "gs://bucket/a folder/sentencepiece.model"


class Storage(http.server.BaseHTTPRequestHandler):
    """Answers as Google Cloud Storage does, with one object."""

    requests: list[str]
    md5 = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path != "/bucket/a%20folder/sentencepiece.model":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("x-goog-hash", "crc32c=AAAAAA==")
        self.send_header("x-goog-hash", f"md5={self.md5}")
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Storage]]:
    handler = type("Handler", (Storage,), {"requests": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_object_is_downloaded_once(storage: type[Storage], tmp_path: Path) -> None:
    first, second = local_copy(ADDRESS), local_copy(ADDRESS)
    assert first == second and first.read_bytes() == CONTENT
    assert first.is_relative_to(tmp_path)
    assert len(storage.requests) == 1


def test_a_download_with_another_checksum_is_not_kept(
    storage: type[Storage], tmp_path: Path
) -> None:
    storage.md5 = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(UserError, match="does not match the checksum"):
        local_copy(ADDRESS)
    assert list(tmp_path.rglob("*")) == []


def test_what_is_not_there_is_named_with_where_to_put_a_copy(
    storage: type[Storage], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"answered 404 .*put a copy at {tmp_path}/mtf/bucket/none"):
        local_copy("gs://bucket/none")


def test_without_a_network_the_address_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="gs://bucket/x cannot be downloaded from"):
        _ = SentencePieceVocabulary("gs://bucket/x").vocab_size


def test_other_addresses_are_refused() -> None:
    with pytest.raises(UserError, match=r"s3://bucket/x is a remote address; expected a local"):
        _ = SentencePieceVocabulary("s3://bucket/x").vocab_size
