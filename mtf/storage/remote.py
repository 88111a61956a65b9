"""The path type for `gs://`, `s3://` and `https://`, based on universal-pathlib and fsspec."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import logging
import os
import posixpath
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import fsspec
from upath import UPath

from mtf.storage.errors import GCS_URL, PACKAGES, READ_ONLY, StorageError, endpoint, explained

# The part size of a multipart upload, in bytes. S3 allows 10,000 parts.
BYTES_OF_PART = 32 * 2**20
# With these times, a command says within a minute that a store does not answer. gcsfs waits for
# 17 s between five tries, and s3fs tries to read a file four times.
_SECONDS_TO_ANSWER, _SECONDS_FOR_GCS, _SECONDS_FOR_S3 = 6, 3, 3
_TRIES_OF_GCS, _TRIES_OF_S3, _MAX_CONNECTIONS = 5, 3, 50
_SECONDS_OF_ONE_TRY = 60
_NAMES = {"gcsfs": ("gs", "gcs"), "s3fs": ("s3", "s3a")}
# File over https:// → its description before it was read, which `copies.unchanged` uses up.
READ_IN_PLACE: dict[RemotePath, dict[str, Any]] = {}
_WRITING = ("open", "pipe_file", "put_file", "rm", "rm_file", "mkdir")


class RemotePath(UPath):
    """A path in an object store. A new file appears only once it is complete.

    This class is not an `os.PathLike`, so functions for local files raise TypeError instead of
    creating a directory called `gs:`. Directories exist as long as they contain files and need not
    be created. Methods raise FileNotFoundError if the file does not exist, and StorageError for
    other errors of the store.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> RemotePath:
        """Creates a RemotePath; `UPath.__new__` would choose another class for the scheme."""
        return object.__new__(cls)

    def with_segments(self, *segments: Any) -> RemotePath:
        """Joins the segments and returns the normalized path."""
        key = posixpath.join(*map(str, segments)).removeprefix(f"{self.protocol}://")
        return type(self)(f"{self.protocol}://{posixpath.normpath(key)}")

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of the host for `https://`."""
        return str(self).split("/")[2]

    @property
    def fs(self) -> Any:
        """The fsspec file system of this path, which raises StorageError or FileNotFoundError."""
        return _Explained(self)

    def exists(self, **_: Any) -> bool:
        """Returns whether this path is a file, or a directory that contains files."""
        return self._type() is not None

    def is_file(self, **_: Any) -> bool:
        """Returns whether this path is a file."""
        return self._type() == "file"

    def is_dir(self, **_: Any) -> bool:
        """Returns whether there are files below this path; False for https://."""
        return self._type() == "directory"

    def _type(self) -> str | None:
        # `fs.exists` is not used because it hides all errors.
        with contextlib.suppress(FileNotFoundError):
            return str(self.fs.info(self.path).get("type", "file"))
        return None

    def infos(self) -> dict[str, dict[str, Any]]:
        """Returns fsspec's descriptions of the files below this path, keyed by relative path."""
        with contextlib.suppress(FileNotFoundError):
            found = self.fs.find(self.path, detail=True)
            return {name[len(self.path) + 1 :]: info for name, info in sorted(found.items())}
        return {}

    def iterdir(self) -> Iterator[RemotePath]:
        """Returns the files and directories in this directory, sorted by name."""
        found = map(self.with_segments, self.fs.ls(self.path, detail=False))
        return iter(sorted({*found} - {self}))

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:
        """Returns the matching paths, sorted by name, or no paths if the bucket does not exist."""
        found: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            found = self.fs.glob(f"{self.path}/{pattern}")
        return iter(sorted(map(self.with_segments, found)))

    @contextlib.contextmanager
    def open(self, mode: str = "r", *_: Any, **__: Any) -> Iterator[IO[Any]]:  # type: ignore[override]
        """Opens the file for reading or writing; a new file appears when the block succeeds.

        Text is encoded as UTF-8. Binary data is uploaded in parts, to limit memory use.
        """
        if "w" not in mode:
            content = io.BytesIO(self.read_bytes())
            yield content if "b" in mode else io.TextIOWrapper(content, "utf-8")
            return
        file, text = self.fs.open(self.path, "wb", block_size=BYTES_OF_PART), io.StringIO()
        opened = _Explained(self, file, writes=True)
        try:
            yield opened if "b" in mode else text  # type: ignore[misc]
            opened.write(text.getvalue().encode())
            opened.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            file.closed = True  # Otherwise the destructor uploads the file.
            raise

    def read_range(self, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` up to `stop`; reads several parts in parallel.

        Raises StorageError if the file is shorter or the server does not support range requests.
        """
        self._note_version()
        starts = range(start, stop, BYTES_OF_PART)
        ends = [min(begin + BYTES_OF_PART, stop) for begin in starts]
        paths = [self.path] * len(ends)
        found = b"".join(self.fs.cat_ranges(paths, [*starts], ends, on_error="raise"))
        if len(found) != stop - start:
            raise StorageError(
                self,
                f"the server sent {len(found)} bytes for the range {start}-{stop - 1}; it must "
                "support range requests. Copy the directory to this machine.",
            )
        return found

    def read_bytes(self) -> bytes:
        """Returns the content of the file."""
        self._note_version()
        return bytes(self.fs.cat_file(self.path))

    def _note_version(self) -> None:
        if self.protocol in READ_ONLY and self not in READ_IN_PLACE:
            READ_IN_PLACE[self] = self.fs.info(self.path)

    def read_text(self, *_: Any, **__: Any) -> str:
        """Returns the content of the file, decoded as UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, data: Any) -> int:
        """Replaces the content of the file."""
        self.fs.pipe_file(self.path, bytes(data))
        return len(data)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        """Replaces the content of the file with text, encoded as UTF-8."""
        return self.write_bytes(data.encode())

    def upload(self, file: Path) -> None:
        """Uploads a local file to this path."""
        self.fs.put_file(str(file), self.path)

    def download(self, file: Path) -> None:
        """Copies this file to a local path."""
        # With several connections for a file, gcsfs repeats its six tries six times.
        options = {"concurrency": 1} if self.protocol == "gs" else {}
        self.fs.get_file(self.path, str(file), **options)

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Does nothing (stores have no empty directories), or raises StorageError for https://."""
        if self.protocol in READ_ONLY:
            self.fs.mkdir(self.path)

    def rmdir(self, *_: Any) -> None:
        """Does nothing, because stores have no empty directories."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes the file."""
        with contextlib.suppress(*[FileNotFoundError] * missing_ok):
            self.fs.rm_file(self.path)

    def rmtree(self) -> None:
        """Deletes all files below this path; does nothing if there are none."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path, recursive=True)


class _Explained:
    """Wraps an fsspec file system or file so that its methods raise the errors of `explained`."""

    def __init__(self, path: RemotePath, target: Any = None, writes: bool = False):
        self._path, self._target, self._writes = path, target, writes

    def __getattr__(self, name: str) -> Any:
        path, scheme = self._path, self._path.protocol
        if name in _WRITING and scheme in READ_ONLY:
            raise StorageError(path, f"{scheme}:// is read-only; expected gs:// or s3://.")
        if name in ("ls", "find", "glob") and scheme in READ_ONLY:
            raise StorageError(path, f"{scheme}:// files cannot be listed; expected a file path.")

        def call(*args: Any, **kwargs: Any) -> Any:
            with explained(path, writes=self._writes or name in _WRITING[:3]):
                if self._target is None:
                    _check_server(path)
                return getattr(self._target or filesystem(scheme), name)(*args, **kwargs)

        return call


def _check_server(path: RemotePath) -> None:
    """Raises StorageError if a package is missing, and OSError if the server does not answer."""
    package, extra = PACKAGES[path.protocol]
    if importlib.util.find_spec(package) is None:
        raise StorageError(
            f"{path.protocol}://",
            f"the package {package} is needed, but not installed; run: pip install "
            f"'mtf-jax[{extra}]'",
        )
    if path.protocol == "gs":
        _connect(endpoint("gs") or GCS_URL)
    elif path.protocol == "s3":  # Each region has a different server.
        _connect(str(filesystem("s3").s3.meta.endpoint_url))
    else:
        _connect(f"{path.protocol}://{path.bucket}")


@functools.cache
def _connect(url: str) -> None:
    """Raises OSError if a server does not answer in a few seconds; does nothing behind a proxy.

    fsspec's libraries retry for up to a minute. Retrying is useful during a run, but if the server
    does not answer at the start of a run, the URL is usually wrong or there is no network.
    """
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    if not urllib.request.getproxies():
        socket.create_connection((str(parts.hostname), port), _SECONDS_TO_ANSWER).close()


@functools.cache
def filesystem(scheme: str) -> Any:
    """Configures fsspec and its libraries globally; returns fsspec's file system for a scheme."""
    # Otherwise gcsfs asks another service for the type of each bucket, which can take a minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    package, _ = PACKAGES[scheme]
    library = importlib.import_module(package)
    # Otherwise they log a traceback for each error that they raise.
    for name in (package, "fsspec"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if package == "aiohttp":
        return fsspec.filesystem(scheme, client_kwargs={"timeout": _timeout(_SECONDS_TO_ANSWER)})
    # Orbax's file systems get these options, too. Listings are not cached, because TensorStore and
    # Orbax write files.
    options: dict[str, Any] = {"use_listings_cache": False}
    if package == "gcsfs":
        options["requests_timeout"] = _timeout(_SECONDS_FOR_GCS)
        _limit_tries(library)
        if endpoint("gs"):
            options["token"] = "anon"
    else:
        options["config_kwargs"] = {
            "read_timeout": _SECONDS_FOR_S3,
            "retries": {"total_max_attempts": _TRIES_OF_S3},
            "max_pool_connections": _MAX_CONNECTIONS,
        }
        library.S3FileSystem.retries = 2  # each with all attempts of the library below
    for name in _NAMES[package]:
        fsspec.config.conf.setdefault(name, {}).update(options)
    return fsspec.filesystem(scheme)


def _limit_tries(gcsfs: Any) -> None:
    """Lets gcsfs try each request a few times, but only once for a while after all tries failed.

    gcsfs has no option for this. A command often makes several requests before it ends with an
    error, and with all tries for each of them, the message would come after minutes.
    """
    file_system, retry = gcsfs.core.GCSFileSystem, gcsfs.retry
    request = file_system._request.__wrapped__
    once_until = 0.0

    @functools.wraps(request)
    async def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal once_until
        tries = 1 if time.monotonic() < once_until else _TRIES_OF_GCS
        try:
            answer = await retry.retry_request(retries=tries)(request)(self, *args, **kwargs)
        except Exception as error:
            if retry.is_retriable(error):
                once_until = time.monotonic() + _SECONDS_OF_ONE_TRY
            raise
        once_until = 0.0
        return answer

    file_system._request = limited


def _timeout(seconds: float) -> Any:
    # By default, aiohttp ends downloads that take more than five minutes, and gcsfs waits forever.
    from aiohttp import ClientTimeout

    return ClientTimeout(sock_connect=seconds, sock_read=seconds)
