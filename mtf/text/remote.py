"""Small files of Google Cloud Storage: got over HTTPS once, and kept in the user's cache.

The vocabularies of T5 and mT5 lie there, readable by everyone.
"""

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
    """Returns whether a path is the address of something that is not on this machine."""
    return "://" in path


def local_copy(address: str) -> Path:
    """Returns where the file of a `gs://BUCKET/OBJECT` address lies on this machine.

    If it is missing, it is downloaded into `~/.cache/mtf` (or `$XDG_CACHE_HOME/mtf`), from the
    public endpoint or the one that STORAGE_EMULATOR_HOST names, and its checksum is compared.
    Raises UserError if that fails; says where to put a copy instead.
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
    by_hand = f"Without a network, put a copy at {target}, or name a local file"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            hashes: list[str] = response.headers.get_all("x-goog-hash", [])
    except urllib.error.HTTPError as error:
        what = f": {url} answers {error.code} {error.reason}"
        raise UserError(f"{address}{what}. {by_hand}") from error
    except OSError as error:
        what = f" cannot be downloaded from {url}: {getattr(error, 'reason', error)}"
        raise UserError(f"{address}{what}. {by_hand}") from error
    md5 = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    sent = [part.strip() for line in hashes for part in line.split(",")]
    if any(part.startswith("md5=") and part != f"md5={md5}" for part in sent):
        raise UserError(f"{address}: what {url} sent does not have the checksum that it names")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content)
    return target
