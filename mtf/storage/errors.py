"""Explains the errors of object stores, and tells the user what to do about them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any
from urllib.parse import urlsplit

# Scheme → (package that fsspec needs, mtf's extra that installs the package).
PACKAGES = {
    "gs": ("gcsfs", "gcs"),
    "s3": ("s3fs", "s3"),
    "https": ("aiohttp", "https"),
    "http": ("aiohttp", "https"),
}
READ_ONLY = ("https", "http")
GCS_URL = "https://storage.googleapis.com"
# Scheme → environment variable of Google's or Amazon's libraries that sets the server's URL.
_ENDPOINTS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
_LOG_IN = {
    "gs": "Log in with `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account",
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
}
# Pairs of a kind of failure and a pattern. The patterns match exceptions of gcsfs, s3fs, aiohttp
# and TensorStore, written as "Name: message".
_KINDS = (
    ("credentials", r"NoCredentials|CredentialsError|RefreshError|Unable to locate credentials"),
    ("credentials", r"\b401\b|UNAUTHENTICATED|Anonymous caller|InvalidAccessKey|SignatureDoesNot"),
    ("permission", r"\b403\b|Forbidden|PERMISSION_DENIED|PermissionError|AccessDenied"),
    ("bucket", r"NoSuchBucket|specified bucket|bucket does not exist|[Ii]nvalid.{0,20}[Bb]ucket"),
    ("missing", r"\b404\b|NOT_FOUND|Not Found|NoSuchKey|FileNotFoundError"),
    ("network", r"Connect|Timeout|timed out|UNAVAILABLE|DEADLINE|resolve|ServerDisconnected"),
    ("network", r"\b(429|50[0234])\b|ClientOSError|TransportError|CURL error"),
    ("network", r"PayloadError|IncompleteRead|retry attempts failed|gaierror|[Uu]nreachable"),
    ("content", r"ChecksumError"),
)
_STORE_LIBRARIES = ("gcsfs", "s3fs", "aiobotocore", "botocore", "fsspec")
_LIBRARIES = (*_STORE_LIBRARIES, "aiohttp", "google", "requests")
_STATUS = re.compile(r"[A-Z_]+: ")  # TensorStore raises ValueError("STATUS: …").


# The user information of a URL, such as `NAME:PASSWORD@`.
_USER = re.compile(r"(?<=://)[^/?#\s'\"]+@")


def has_user(text: str) -> bool:
    """Returns whether a text contains a URL with a user name or password."""
    return _USER.search(text) is not None


def without_user(text: str) -> str:
    """Replaces the user names and passwords of all URLs in a text with dots."""
    return _USER.sub("…@", text)


class StorageError(OSError):
    """Raised if a store refuses a request or cannot be reached."""

    def __init__(self, path: object, reason: str, kind: str | None = None):
        super().__init__(without_user(reason))
        self.filename, self.strerror = without_user(str(path)), without_user(reason)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    def __reduce__(self) -> Any:  # Errors are pickled when they are sent between processes.
        return type(self), (self.filename, self.strerror, self.kind)


def endpoint(scheme: str) -> str | None:
    """Returns the server URL that an environment variable sets for a scheme; None if unset."""
    host = os.environ.get(_ENDPOINTS.get(scheme, ""))
    return f"http://{host}" if host and "://" not in host else host or None


@contextlib.contextmanager
def explained(path: object, *, writes: bool = False) -> Iterator[None]:
    """Converts errors of store libraries to StorageError or FileNotFoundError.

    If `writes` is True, "not found" means that the bucket does not exist.
    """
    try:
        yield
    except (StorageError, IsADirectoryError, NotADirectoryError):
        raise
    except Exception as error:
        kind = failure_kind(error)
        if kind is None:
            raise
        if kind == "missing" and not writes:
            raise FileNotFoundError(2, "There is no such file", str(path)) from error
        kind = "bucket" if kind == "missing" else kind
        raise StorageError(path, _reason(path, kind, error), kind) from error


def failure_kind(error: BaseException) -> str | None:
    """Returns the kind of an error of a store library, one of those in `_KINDS`.

    Returns None if neither the error nor any of its causes is a known error of a store library.
    """
    found: str | None = None
    each: BaseException | None = error
    while each is not None:
        text, library = f"{type(each).__name__}: {each}", type(each).__module__.partition(".")[0]
        is_status = isinstance(each, ValueError) and _STATUS.match(str(each))
        if is_status or isinstance(each, OSError) or library in _LIBRARIES:
            kind = next((kind for kind, words in _KINDS if re.search(words, text)), found)
            if kind not in (None, "missing"):
                return kind
            found = kind
        # Over HTTP, fsspec reports every failure as a missing file with the error as its cause.
        each = each.__cause__ or (None if found else each.__context__)
    return found


def why_not_written(error: BaseException, path: object) -> str | None:
    """Returns why a file under `path` was not written; None if the store did not cause `error`."""
    url = urlsplit(str(path))
    if isinstance(error, StorageError):
        return error.strerror if urlsplit(error.filename).netloc == url.netloc else None
    libraries = {type(error).__module__.partition(".")[0]}
    if "aiohttp" in libraries:  # The library that asked is in the traceback.
        frames = walk_tb(error.__traceback__)
        libraries |= {str(each.f_globals.get("__name__")).partition(".")[0] for each, _ in frames}
        libraries -= {"fsspec"}  # It also reads from http:// addresses.
    # TensorStore's errors name the bucket or, for S3, only the object.
    is_named = url.netloc in str(error) or f'"{url.path.strip("/")}/' in str(error)
    kind = failure_kind(error) if libraries & {*_STORE_LIBRARIES} or is_named else None
    if kind == "missing":
        return f"a file in it, or its bucket, was deleted: {error}"
    return kind and _reason(path, kind, error)


def _reason(path: object, kind: str, error: BaseException) -> str:
    url = urlsplit(str(path))
    if kind == "bucket":
        return f"there is no bucket {url.netloc!r}."
    if kind == "network":
        name = _ENDPOINTS.get(url.scheme, "")
        where = f" ({name}={os.environ[name]})" if os.environ.get(name) else ""
        detail = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        detail = re.sub(r"^, (?=\d+$)", "status ", detail)  # gcsfs has no message.
        return f"the store{where} cannot be reached: {detail}. Check the network, and try again."
    if kind == "content":
        return f"the server sent wrong content: {str(error)[:200]}"
    if url.scheme in READ_ONLY:
        return f"access is denied. Only public files can be read from {url.scheme}:// addresses."
    if kind == "credentials":
        why = "the store did not accept the credentials, or there are none"
        return f"{why}. {_LOG_IN[url.scheme]}."
    account = f"with an account that may access {url.netloc}"
    return f"access is denied. {_LOG_IN[url.scheme]}, {account}."
