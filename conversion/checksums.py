"""Writes and checks `checksums.json`, which lists sizes and checksums of a checkpoint's files.

The file is in the directory of the checkpoint, or of the model or adapters for PyTorch. Directories
without it, such as those of other programs, are not checked.

CRC32C is fast enough for large files. Small files also have a SHA-256, because the small files of an
OCDBT database end with the CRC32C of their content, and the CRC32C of every such file is the same.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import google_crc32c

from conversion.json_file import write_json
from conversion.tensor import IncompleteCheckpoint, damaged
from mtf.storage import UNFINISHED, AnyPath, file_sizes, is_listable, is_remote

CHECKSUMS = "checksums.json"
# The beginnings of the names of files that may change later and on which no tensor depends.
_UNLISTED = (CHECKSUMS, UNFINISHED, "README.md", "metrics/", "commit_success", "_CHECKPOINT_META")
# Files above this size are read while the tensors are read, others when the checkpoint is opened.
_SMALL_BYTES = 2**20
_FILES_AT_ONCE = 8
# Blocks of local files fit the processor's caches; each block of a remote file is a request.
_BLOCK_BYTES, _REMOTE_BLOCK_BYTES = 2**18, 2**25


class _Content(NamedTuple):
    """The size of a file in bytes, its CRC32C in base64, as in `gs://`, and its SHA-256 in hex.

    A checksum is None if it is unknown.
    """

    size: int
    crc32c: str | None = None
    sha256: str | None = None


def write_checksums(directory: AnyPath) -> None:
    """Writes the sizes and checksums of the files in a directory, which are read.

    Large files in `gs://` are not read, because the store has computed their CRC32C.
    """
    found = {n: x for n, x in _described(directory).items() if not n.startswith(_UNLISTED)}
    unread = {n: x for n, x in found.items() if x.size <= _SMALL_BYTES or x.crc32c is None}
    found |= _read(directory, unread)
    write_json(directory / CHECKSUMS, {name: content._asdict() for name, content in found.items()})


def check_small_files(directory: AnyPath) -> None:
    """Checks the sizes of all files and, on a file system, the checksums of small ones.

    In object stores, which guard their files against damage, no files are read, but a CRC32C that
    the store has computed is compared. Files that are missing are ignored, because no checkpoint
    can be read without them.

    Raises:
      IncompleteCheckpoint: a file differs from `checksums.json`.
    """
    if not is_listable(directory) or not (listed := _listed(directory)):
        return
    found = {name: x for name, x in _described(directory).items() if name in listed}
    _compare(directory, listed, found)
    if not is_remote(directory):
        small = {name: x for name, x in found.items() if x.size <= _SMALL_BYTES}
        _compare(directory, listed, _read(directory, small))


@contextlib.contextmanager
def checking(directory: AnyPath, share: slice = slice(None)) -> Iterator[None]:
    """Checks the large files of an opened checkpoint, if local, while the block reads tensors.

    Args:
      directory: the directory of the checkpoint.
      share: which of the files to check, if several processes divide them.

    Raises:
      IncompleteCheckpoint: a file differs from `checksums.json`. This error replaces any error of
        the block.
    """
    listed = {} if is_remote(directory) else _listed(directory)
    names = sorted(name for name, content in listed.items() if content.size > _SMALL_BYTES)
    large = {name: listed[name] for name in names[share] if (directory / name).is_file()}
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_read, directory, large)
        try:
            yield
        finally:
            _compare(directory, listed, found.result())


def _listed(directory: AnyPath) -> dict[str, _Content]:
    """Returns the content of `checksums.json`, or {} if there is no such file."""
    file = directory / CHECKSUMS
    if not file.is_file():
        return {}
    with damaged(file, "is damaged"):
        content = json.loads(file.read_bytes())
        return {name: _Content(**x | {"size": int(x["size"])}) for name, x in content.items()}


def _described(directory: AnyPath) -> dict[str, _Content]:
    """Returns what is known of the files in a directory without reading them."""
    if is_remote(directory):
        infos = directory.infos()
        return {name: _Content(int(x["size"]), x.get("crc32c")) for name, x in infos.items()}
    return {name: _Content(size) for name, size in file_sizes(directory).items()}


def _read(directory: AnyPath, known: Mapping[str, _Content]) -> dict[str, _Content]:
    """Reads files of known sizes and returns their checksums."""

    def read(name: str) -> _Content:
        size = known[name].size
        crc32c, sha256 = google_crc32c.Checksum(), hashlib.sha256()
        for part in _parts(directory / name, size):
            crc32c.update(part)
            if size <= _SMALL_BYTES:
                sha256.update(part)
        checksum = base64.b64encode(crc32c.digest()).decode()
        return _Content(size, checksum, sha256.hexdigest() if size <= _SMALL_BYTES else None)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return dict(zip(known, pool.map(read, known), strict=True))


def _parts(file: AnyPath, size: int) -> Iterator[bytes]:
    if is_remote(file):
        for start in range(0, size, _REMOTE_BLOCK_BYTES):
            yield file.read_range(start, min(start + _REMOTE_BLOCK_BYTES, size))
        return
    with file.open("rb", buffering=0) as opened:
        while part := opened.read(_BLOCK_BYTES):
            yield part


def _compare(directory: AnyPath, listed: dict[str, _Content], found: dict[str, _Content]) -> None:
    for name, content in found.items():
        for kind, value, expected in zip(_Content._fields, content, listed[name], strict=True):
            if value != expected and None not in (value, expected):
                raise IncompleteCheckpoint(
                    f"{directory / name} is damaged: its {kind} is {value}, but {expected} in "
                    f"{CHECKSUMS}. Use another checkpoint or, if you changed the file yourself, "
                    f"delete {CHECKSUMS}."
                )
