"""A notice of Google Cloud's metadata server stops a run as SIGTERM does."""

from __future__ import annotations

import contextlib
import http.server
import signal
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.cluster import preemption
from mtf.signals import Interrupts
from tests import small


class Metadata:
    """A metadata server; `preempted` is set when the machine will be preempted."""

    def __init__(self) -> None:
        self.preempted = threading.Event()
        self.requests: list[str] = []


@contextlib.contextmanager
def metadata_server() -> Iterator[tuple[str, Metadata]]:
    """Yields HOST:PORT of a server on the loopback."""
    metadata = Metadata()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metadata.requests.append(self.path)
            path, _, query = self.path.partition("?")
            assert path == "/computeMetadata/v1/instance/preempted"
            assert self.headers["Metadata-Flavor"] == "Google"
            values = dict(urllib.parse.parse_qsl(query))
            if values["wait_for_change"] == "true" and values["last_etag"] == "etag-FALSE":
                metadata.preempted.wait(float(values["timeout_sec"]))
            answer = "TRUE" if metadata.preempted.is_set() else "FALSE"
            self.send_response(200)
            self.send_header("ETag", f"etag-{answer}")
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", metadata
    finally:
        metadata.preempted.set()
        server.shutdown()
        server.server_close()


def test_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_server() as (address, metadata), Interrupts() as interrupts:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        interrupts.hold()
        with preemption.as_sigterm():
            deadline = time.monotonic() + 20
            while len(metadata.requests) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert interrupts.number == 0
            metadata.preempted.set()
            while not interrupts.number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert interrupts.number == signal.SIGTERM
        assert len(metadata.requests) == 2


def test_no_notice_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_server() as (address, metadata), Interrupts() as interrupts:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        interrupts.hold()
        with preemption.as_sigterm():
            pass
        metadata.preempted.set()
        time.sleep(0.3)
        assert interrupts.number == 0


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(preemption, "_PRODUCT", Path("/nowhere"))
    before = threading.active_count()
    with preemption.as_sigterm():
        assert threading.active_count() == before


@pytest.mark.slow
def test_a_run_saves(tmp_path: Path) -> None:
    command = small.arguments(small.write_text(tmp_path), train_steps=100_000, model_dir="run")
    with metadata_server() as (address, metadata):
        process = small.start(command, tmp_path, GCE_METADATA_HOST=address)
        small.read_until(process.stdout, "step 3/")
        metadata.preempted.set()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert "This machine will be preempted." in err
    assert "SIGTERM: saved step" in out
    assert small.steps(tmp_path / "run")[-1] >= 3
