"""A Hugging Face hub on the loopback, which serves folders as repositories."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import importlib.util
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mtf.data.sources import datasets, hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The branch of the Parquet files that the hub makes of other repositories.
CONVERTED = "refs/convert/parquet"
_COMMITS = {"main": COMMIT, CONVERTED: "76543210fedcba9876543210fedcba9876543210"}


@dataclass
class Server:
    """The URL of a running server, and the files that clients have downloaded."""

    address: str = "http://127.0.0.1:9"  # The port `discard`, on which nothing listens.
    downloads: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(repositories: Mapping[str, Path]) -> Iterator[Server]:
    """Serves the hub's interface for datasets and models: folders by names of repositories.

    `OWNER/NAME@refs/convert/parquet` names the folder of this branch. Clients may ask for the
    commit of a branch, the lists of files and folders, and the files with byte ranges
    (https://huggingface.co/docs/hub/api).
    """
    server = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if answer := _upload(self.path, content, repositories, server.address):
                return self._send(answer, body=True)
            self._answer(body=True, form=urllib.parse.parse_qs(content.decode()))

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, body: bool, form: Mapping[str, list[str]] | None = None) -> None:
            path, _, query = self.path.partition("?")
            match = re.fullmatch(
                r"(/api(?=/)|)(?:/datasets|/models|)/([^/]+/[^/]+)((?:/[^/]+)*)/?", path
            )
            if match is None or match[2] not in repositories:
                return self._refuse("RepoNotFound")
            action, revision, *rest = map(urllib.parse.unquote, [*match[3].split("/")[1:], "", ""])
            repository, inside = match[2], "/".join(rest).rstrip("/")
            branch = next((b for b, c in _COMMITS.items() if revision in (b, c)), "main")
            named = repository if branch == "main" else f"{repository}@{branch}"
            if revision not in ("", branch, _COMMITS[branch]) or named not in repositories:
                return self._refuse("RevisionNotFound")
            commit, folder = _COMMITS[branch], repositories[named]
            if action in ("", "revision") and match[1]:
                return self._send({"id": repository, "sha": commit, "siblings": []}, body)
            target = folder / inside
            if not revision or not target.exists():
                return self._refuse("EntryNotFound")
            if action == "tree":
                deep = urllib.parse.parse_qs(query).get("recursive") in (["True"], ["true"])
                found = target.rglob("*") if deep else target.iterdir()
                return self._send([_entry(file, folder) for file in sorted(found)], body)
            if action == "paths-info" and form is not None:
                files = (folder / name for name in form["paths"])
                entries = [_entry(file, folder) for file in files if file.exists()]
                return self._send(entries, body)
            if action == "resolve" and target.is_file():
                if body:
                    server.downloads.append(inside)
                headers = {"ETag": f'"{_etag(target)}"', "X-Repo-Commit": commit}
                return self._send(target.read_bytes(), body, **headers)
            self._refuse("EntryNotFound")

        def _refuse(self, reason: str) -> None:
            self.send_response(404)
            for name, value in {"X-Error-Code": reason, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, content: object, body: bool, **headers: str) -> None:
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            size = len(text)
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
            if wanted:
                start, end = int(wanted[1]), min(int(wanted[2] or size), size - 1)
                text = text[start : end + 1]
                headers["Content-Range"] = f"bytes {start}-{end}/{size}"
            self.send_response(206 if wanted else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if body:
                self.wfile.write(text)

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    server.address = f"http://127.0.0.1:{running.server_port}"
    try:
        yield server
    finally:
        running.shutdown()
        running.server_close()


def _upload(path: str, content: bytes, repositories: Mapping[str, Path], address: str) -> object:
    """Does what a client asks for to upload files; returns the answer, or None."""
    if path == "/api/validate-yaml":
        return {"errors": [], "warnings": []}
    if "/preupload/" in path:
        names = [file["path"] for file in json.loads(content)["files"]]
        files = [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in names]
        return {"files": files}
    if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
        values = [json.loads(line)["value"] for line in content.splitlines()]
        for file in (value for value in values if "path" in value):
            target = repositories[found[1]] / file["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(file["content"]))
        return {
            "success": True,
            "commitOid": COMMIT,
            "commitUrl": f"{address}/{found[1]}/commit/{COMMIT}",
        }
    return None


def _entry(file: Path, folder: Path) -> dict[str, object]:
    """Returns a file or a folder as the hub lists it."""
    path = file.relative_to(folder).as_posix()
    if file.is_dir():
        return {"type": "directory", "path": path, "oid": COMMIT, "size": 0}
    return {"type": "file", "path": path, "oid": _etag(file), "size": file.stat().st_size}


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def use(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the hub's libraries, which may be imported already, use the server and a cache.

    A server that is not started stands for a hub that cannot be reached.
    """
    from huggingface_hub import constants

    settings: list[Any] = [constants]
    if importlib.util.find_spec("datasets"):
        from datasets import config

        settings.append(config)
        monkeypatch.setattr(config, "HF_ENDPOINT", server.address)
        monkeypatch.setattr(config, "HF_DATASETS_CACHE", cache / "datasets")
        downloaded = str(cache / "datasets" / "downloads")
        monkeypatch.setattr(config, "DOWNLOADED_DATASETS_PATH", downloaded)
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for module in settings:
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    for proxy in ("all_proxy", "http_proxy", "https_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    _forget_the_hub()
    yield
    _forget_the_hub()


def _forget_the_hub() -> None:
    hub.why_unreachable.cache_clear()
    datasets._open_hub.cache_clear()
