"""Servers of object stores on the loopback: Google Cloud Storage, S3 and HTTPS's stand-in, HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import http.server
import itertools
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

# The emulator is not written for requests at the same time.
_LOCK = threading.RLock()
# (object, first byte, end) of the contents that the GCS server has sent.
SERVED: list[tuple[str, int, int]] = []


def _teach_generations() -> None:
    """Adds to gcp-storage-emulator what TensorStore relies on in the real service.

    These are the generation of an object in the headers of its content, the preconditions
    ifGenerationMatch and ifGenerationNotMatch, and the offsets of a listing
    (https://cloud.google.com/storage/docs/json_api/v1/objects).
    """
    from gcp_storage_emulator import server
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    def generation(request: Any, storage: Any) -> int:
        name = request.params.get("object_id") or (request.query.get("name") or [None])[0]
        try:
            return int(storage.get_file_obj(request.params["bucket_name"], name)["generation"])
        except NotFound:
            return 0

    def guarded(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def handle(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
            now = generation(request, storage)
            wanted, unwanted = (
                request.query.get(name) for name in ("ifGenerationMatch", "ifGenerationNotMatch")
            )
            if wanted and int(wanted[0]) != now:
                response.status = HTTPStatus.PRECONDITION_FAILED
            elif unwanted and int(unwanted[0]) == now:
                response.status = HTTPStatus.NOT_MODIFIED
            else:
                handler(request, response, storage, *args, **kwargs)
                is_content = handler is objects.download or request.query.get("alt") == ["media"]
                if now and is_content and handler is not objects.insert:
                    SERVED.append(_range(request, storage))
                if now:
                    response["x-goog-generation"] = str(now)
                    response["x-goog-metageneration"] = "1"

        return handle

    def serialized(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def handle(request: Any, response: Any, storage: Any) -> None:
            _ = request.data  # Closing a connection whose body was not read would reset it.
            with _LOCK:
                handler(request, response, storage)

        return handle

    def _range(request: Any, storage: Any) -> tuple[str, int, int]:
        name = request.params["object_id"]
        size = len(storage.get_file(request.params["bucket_name"], name))
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.get_header("range", None) or "")
        if match is None:
            return name, 0, size
        return name, int(match[1]), min(int(match[2] or size) + 1, size)

    def listed(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        start, end = (request.query.get(name, [None])[0] for name in ("startOffset", "endOffset"))
        json = response.json

        def within(found: dict[str, Any]) -> None:
            items = found.get("items") or []
            if start is not None:
                items = [item for item in items if item["name"] >= start]
            if end is not None:
                items = [item for item in items if item["name"] < end]
            json({**found, "items": items})

        response.json = within
        objects.ls(request, response, storage, *args, **kwargs)

    replaced = {
        each: guarded(each)
        for each in (objects.download, objects.insert, objects.delete, objects.get)
    }
    replaced[objects.ls] = listed
    server.HANDLERS = tuple(
        (regex, {method: serialized(replaced.get(each, each)) for method, each in handlers.items()})
        for regex, handlers in server.HANDLERS
    )


def _keep_line_ends() -> None:
    """Keeps a carriage return at the end of a file that is uploaded in a multipart request.

    The parts of gcsfs end in a line feed, and the emulator's parser removes both characters.
    """
    from gcp_storage_emulator import server

    decode = server._decode_raw_data

    def decoded(content: bytes, request: Any) -> bytes:
        content = decode(content, request)
        match = re.search(
            'multipart/related.*boundary="?([^";]+)', request.headers["Content-Type"] or ""
        )
        if not content or match is None:
            return content
        end = f"\n--{match[1]}--".encode()
        before, found, after = content.rpartition(end)
        return before + b"\r" + found + after if found else content

    server._decode_raw_data = decoded


@contextlib.contextmanager
def gcs(*buckets: str) -> Iterator[str]:
    """Starts gcp-storage-emulator with empty buckets; yields its address."""
    from gcp_storage_emulator import server
    from gcp_storage_emulator.storage import Storage

    if not hasattr(server, "_knows_generations"):
        _teach_generations()
        _keep_line_ends()
        server._knows_generations = True
    storage = Storage(use_memory_fs=True)
    # It lists all objects after each upload, for a server that starts with the files of another.
    storage._write_config_to_file = lambda: None
    for bucket in buckets:
        storage.create_bucket(bucket, {"name": bucket})
    with serving(functools.partial(server.RequestHandler, storage)) as address:
        yield address


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that close a response early."""


@contextlib.contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    started = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=started.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{started.server_address[1]}"
    finally:
        started.shutdown()
        started.server_close()


@contextlib.contextmanager
def s3(*buckets: str) -> Iterator[str]:
    """Starts moto's S3 with empty buckets; yields its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It logs every request.
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    try:
        for bucket in buckets:
            _send(f"http://{host}:{port}", "PUT", f"/{bucket}", b"")
        yield f"http://{host}:{port}"
    finally:
        started.stop()


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files with byte ranges and, unless a test changes this, with entity tags."""

    has_tags = True

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.has_tags and path.is_file():
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}-{path.stat().st_size}"')
        super().end_headers()

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not match or not path.is_file():
            return super().do_GET()
        content = path.read_bytes()
        start, stop = int(match[1]), min(int(match[2] or len(content) - 1) + 1, len(content))
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])


@contextlib.contextmanager
def http_files(directory: Path) -> Iterator[str]:
    """Serves a directory over HTTP; yields the address."""
    handler = functools.partial(Files, directory=str(directory))
    with serving(handler) as address:
        yield address


@dataclasses.dataclass
class Fault:
    """What a proxy does to the answers to GET requests of content.

    Attributes:
      kind: a status, or one of `KINDS`.
      first: the number of the first such request that is answered wrongly.
      times: how many requests are answered wrongly from then on.
      replace: a function that replaces the files in the store, for the kind "replaced".
      every_request: whether to count and to answer wrongly other requests, too.
      began, latest: the times of the first and the latest wrong answer.
    """

    kind: int | str
    first: int = 0
    times: int = 1000
    replace: Callable[[], object] = lambda: None
    every_request: bool = False
    began: float | None = None
    latest: float | None = None


KINDS = (
    *(401, 403, 429, 500, 503),
    *("reset", "reset_inside", "truncated", "flipped", "too_long", "hanging", "hanging_inside"),
    *("replaced", "no_ranges"),
)


@contextlib.contextmanager
def faulty(address: str, fault: Fault) -> Iterator[str]:
    """Starts a proxy of a server; yields its address."""
    count, lock, stopped = itertools.count(), threading.Lock(), threading.Event()

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        sent: bytes | None = None

        def log_message(self, *args: Any) -> None:
            pass

        def forward(self) -> None:
            # Requests for metadata have `alt=json` (gcsfs) or list a bucket (S3).
            asks = f"{self.path}?"
            is_content = self.command == "GET" and (
                "alt=media" in asks
                or not ("/o" in asks.partition("?")[0] or "list-type=" in asks or "/b/" in asks)
            )
            with lock:
                number = next(count) if is_content or fault.every_request else -1
            kind = fault.kind if fault.first <= number < fault.first + fault.times else None
            if kind is not None:
                fault.latest = time.monotonic()
                fault.began = fault.began or fault.latest
            if kind == "hanging":
                stopped.wait()
            if kind == "reset":
                self.reset()
                return
            if isinstance(kind, int):
                self.read()
                self.answer(kind, {}, b"")
                return
            status, headers, body = self.ask(drops_range=kind == "no_ranges")
            if kind == "replaced" and number == fault.first:
                fault.replace()
                later = self.ask()[2]
                middle = len(body) // 2
                body = body[:middle] + later[middle:]
            middle = len(body) // 2
            if kind == "flipped" and body:
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            if kind == "truncated":
                body = body[:middle]
            if kind == "too_long":
                body += body[-7:]
            if kind in ("reset_inside", "hanging_inside"):
                self.head(status, headers, len(body))
                self.wfile.write(body[:middle])
                self.wfile.flush()
                if kind == "hanging_inside":
                    stopped.wait()
                self.reset()
                return
            self.answer(status, headers, body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = forward

        def ask(self, drops_range: bool = False) -> tuple[int, dict[str, str], bytes]:
            """Asks the server; returns the status, the headers and the body."""
            sent = self.read()
            connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
            dropped = {"range"} if drops_range else set()
            headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
            connection.request(self.command, self.path, sent, headers)
            answer = connection.getresponse()
            found = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "date", "server")
            }
            body = answer.read()
            connection.close()
            return answer.status, found, body

        def read(self) -> bytes:
            """Reads the body of the request; returns it again when it is called again."""
            if self.sent is None:
                self.sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return self.sent

        def head(self, status: int, headers: dict[str, str], length: int) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            if self.command == "HEAD":
                length = int(headers.get("Content-Length", length))
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.head(status, headers, len(body))
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle_one_request(self) -> None:
            self.sent = None
            super().handle_one_request()

        def reset(self) -> None:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()

    with serving(Proxy) as proxied:
        try:
            yield proxied
        finally:
            stopped.set()


def put_gcs(address: str, bucket: str, name: str, content: bytes) -> None:
    """Writes an object without the libraries that a test observes."""
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
    _send(address, "POST", path, content)


def put_s3(address: str, bucket: str, name: str, content: bytes) -> None:
    """Writes an object without the libraries that a test observes."""
    _send(address, "PUT", f"/{bucket}/{name}", content)


def _send(address: str, method: str, path: str, content: bytes) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    # moto serves anonymous clients only what is public, and does not check signatures.
    signed = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, Signature=0"
    headers = {"Content-Type": "application/octet-stream", "Authorization": signed}
    connection.request(method, path, content, headers)
    answer = connection.getresponse()
    assert answer.status == HTTPStatus.OK, (answer.status, answer.read())
    connection.close()


def variables(gcs_address: str, s3_address: str) -> dict[str, str]:
    """Returns the environment variables with which libraries find the servers."""
    return {
        "STORAGE_EMULATOR_HOST": gcs_address,
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
