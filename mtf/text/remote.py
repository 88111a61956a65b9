"""Downloads public files from Google Cloud Storage, such as T5's vocabularies, over HTTPS."""

from __future__ import annotations

import base64
import hashlib
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from mtf.errors import UserError
from mtf.writing import write_atomically

_SCHEME = "gs://"
_TIMEOUT_SECONDS = 20


def is_remote(path: str) -> bool:
    """Returns whether a path is an address, not a path on this machine."""
    return "://" in path


def local_copy(address: str) -> Path:
    """Returns the path of the local copy of `gs://BUCKET/OBJECT`; downloads it the first time.

    Copies are in `~/.cache/mtf` (or `$XDG_CACHE_HOME/mtf`). STORAGE_EMULATOR_HOST replaces the
    public endpoint. Raises UserError if the download fails or its checksum differs.
    """
    if not address.startswith(_SCHEME):
        raise UserError(f"{address} is a remote address; expected a local file or gs://…")
    name = address.removeprefix(_SCHEME)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    target = Path(cache).expanduser() / "mtf" / name
    if target.is_file():
        return target
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
    url = f"{host}/{urllib.parse.quote(name)}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            hashes: list[str] = response.headers.get_all("x-goog-hash", [])
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            reason = f"the server answered {error.code} {reason}"
        raise UserError(
            f"{address} cannot be downloaded from {url}: {reason}. Without network access, put "
            f"a copy at {target}, or pass the path of a local file"
        ) from error
    md5 = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    sent = [part.strip() for line in hashes for part in line.split(",")]
    if any(part.startswith("md5=") and part != f"md5={md5}" for part in sent):
        raise UserError(
            f"{address}: the file downloaded from {url} does not match the checksum in the "
            "response headers; try again"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content)
    return target
