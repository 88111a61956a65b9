"""Model cards, and uploads to a hub on the loopback interface."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mtf import convert, hub
from tests.conversion import writers


def export(folder: Path, *options: str, to: str = "hf") -> tuple[int, Path]:
    source = writers.write_t5x(folder, writers.random_parameters(), 1000)
    arguments = [str(source), str(folder / "out"), "--to", to, *options]
    return convert.main(arguments), folder / "out"


@pytest.mark.parametrize("to", ["hf", "hf_flax"])
def test_model_card(to: str, tmp_path: Path) -> None:
    status, out = export(tmp_path, to=to)
    assert status == 0
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n- t5\n---\n")
    source = tmp_path / "checkpoint_1000"
    assert f"Source: `{source}` (T5X, zarr and msgpack, step 1,000)" in card
    assert ("`FlaxT5For" if to == "hf_flax" else "`T5For") in card
    assert "inputs ended with EOS" in card and "This is assumed" in card
    assert "This directory has no tokenizer." in card
    generation = json.loads((out / "generation_config.json").read_text())
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    assert generation.items() >= ids.items()


def test_model_card_of_inputs_without_eos(tmp_path: Path) -> None:
    from conversion import huggingface, open_checkpoint
    from conversion.model_card import model_card

    source = writers.write_t5x(tmp_path, writers.random_parameters(), 1000)
    card = model_card(huggingface.Export(open_checkpoint(source), inputs_add_eos=False))
    assert "inputs did not end with EOS" in card and "assumed" not in card


def test_without_a_token_the_command_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    folder = tmp_path / "my models"
    status, out = export(folder, "--push-to-hub", "me/t5")
    assert status == 0
    assert f"  hf upload me/t5 '{out}' .\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("repo", "words"),
    [("a/b/c", "expected the name of a repository"), ("me/t 5", "expected the name")],
)
def test_names_are_checked_first(
    repo: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = export(tmp_path, "--push-to-hub", repo)
    assert (status, out.exists()) == (2, False)
    assert words in capsys.readouterr().err


def test_only_exports_are_uploaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = export(tmp_path, "--push-to-hub", "me/t5", to="t5x")
    assert (status, out.exists()) == (2, False)
    assert "--push-to-hub: not with --to t5x" in capsys.readouterr().err


class _Hub(BaseHTTPRequestHandler):
    """The requests of `create_repo` and `upload_folder`; large files go through Git LFS."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    created: list[str]
    tokens: set[str | None]
    status = 200

    def _answer(self, content: Any = None, status: int | None = None) -> None:
        body = json.dumps(content or {}).encode()
        self.send_response(status or self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        self.tokens.add(self.headers.get("Authorization"))
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        self._body()
        self._answer({"id": "me/t5", "sha": "0" * 40, "siblings": []})

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        self.files[self.path.removeprefix("/lfs/")] = self.rfile.read(length)
        self._answer()

    def do_POST(self) -> None:
        body = self._body()
        host = f"http://{self.headers['Host']}"
        if self.status != 200:
            self._answer({"error": "no"})
        elif self.path == "/api/repos/create":
            self.created.append(json.loads(body)["name"])
            self._answer({"url": f"{host}/me/t5", "name": "me/t5", "id": "me/t5"})
        elif "/preupload/" in self.path:
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            self._answer({"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{host}/lfs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.files.pop(value["oid"])
            url = f"{host}/me/t5/commit/{'0' * 40}"
            self._answer({"commitUrl": url, "commitOid": "0" * 40, "success": True})
        else:
            self._answer()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(status: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    """Runs a hub that answers with `status`; huggingface_hub uses it with the token "secret"."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    new = {"files": {}, "created": [], "tokens": set(), "status": status}
    handler = type("Handler", (_Hub,), new)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api = huggingface_hub.HfApi(f"http://127.0.0.1:{server.server_port}", token="secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    # Other tests in this process may have set the offline mode.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    for name in ("create_repo", "upload_folder"):
        monkeypatch.setattr(f"huggingface_hub.{name}", getattr(api, name))
    try:
        yield handler
    finally:
        server.shutdown()
        server.server_close()


def test_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(200, monkeypatch) as server:
        status, out = export(tmp_path, "--push-to-hub", "me/t5")
    assert status == 0
    assert "Uploaded to http://127.0.0.1:" in capsys.readouterr().out
    assert server.created == ["t5"]
    assert server.tokens == {"Bearer secret"}
    assert server.files == {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_failed_upload_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(403, monkeypatch):
        status, out = export(tmp_path, "--push-to-hub", "me/t5")
    message = capsys.readouterr().err
    assert status == 1 and (out / "config.json").is_file()
    assert message.startswith(f"error: {out} is complete, but it could not be uploaded to me/t5: ")
    assert f"run: hf upload me/t5 {out} .\n" in message


def test_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    hub.push(tmp_path, "me/t5")
    assert f"hf auth login\n  hf upload me/t5 {tmp_path} .\n" in capsys.readouterr().out
