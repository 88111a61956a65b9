"""Writes and checks `checksums.json`, which lists sizes and checksums of a checkpoint's files.

The file is in the directory of the checkpoint, or of the model or adapters for PyTorch. Directories
without it, such as those of other programs, are not checked.

CRC32C is fast enough for large files. Small files also have a SHA-256, because those of an OCDBT
database end with the CRC32C of their other bytes, and then all of them have the same CRC32C.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c

from conversion.json_file import write_json
from conversion.tensor import IncompleteCheckpoint, damaged
from mtf.storage import UNFINISHED, AnyPath, file_sizes, is_listable, is_remote, read_range

CHECKSUMS = "checksums.json"
# The beginnings of the names of files that may change later and on which no tensor depends.
_UNLISTED = (CHECKSUMS, UNFINISHED, "README.md", "metrics/", "commit_success", "_CHECKPOINT_META")
# Files above this size are read while the tensors are read, others when the checkpoint is opened.
_SMALL_BYTES = 2**20
# Blocks of local files fit the processor's caches; each block of a remote file is a request.
_BLOCK_BYTES, _REMOTE_BLOCK_BYTES = 2**20, 2**25

# Name of a file → its `size` in bytes and, if known, its `crc32c` (in base64) and `sha256`.
_Contents = dict[str, dict[str, Any]]


def write_checksums(directory: AnyPath) -> None:
    """Writes the sizes and checksums of the files in a directory.

    The files are read, except large ones in `gs://`, whose CRC32C the store has computed.
    """
    found = {n: x for n, x in _described(directory).items() if not n.startswith(_UNLISTED)}
    unread = [n for n, x in found.items() if x["size"] <= _SMALL_BYTES or "crc32c" not in x]
    write_json(directory / CHECKSUMS, found | _read(directory, unread))


def check_small_files(directory: AnyPath) -> None:
    """Checks the sizes of all files and, on a file system, the checksums of small ones.

    In object stores, which guard their files against damage, no files are read, but a CRC32C that
    the store has computed is compared. Files that are missing are ignored, because no checkpoint
    can be read without them.

    Raises:
      IncompleteCheckpoint: a file differs from `checksums.json`.
    """
    if is_listable(directory) and (listed := _listed(directory)):
        found = {name: x for name, x in _described(directory).items() if name in listed}
        small = [name for name, x in found.items() if x["size"] <= _SMALL_BYTES]
        found |= _read(directory, () if is_remote(directory) else small)
        _compare(directory, listed, found)


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
    sizes = file_sizes(directory) if listed else {}
    large = [name for name in sorted(listed) if sizes.get(name, 0) > _SMALL_BYTES]
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_read, directory, large[share])
        try:
            yield
        finally:
            _compare(directory, listed, found.result())


def _listed(directory: AnyPath) -> _Contents:
    """Returns the content of `checksums.json`, or {} if there is no such file."""
    file = directory / CHECKSUMS
    if not file.is_file():
        return {}
    with damaged(file, "is damaged"):
        return {name: dict(content) for name, content in json.loads(file.read_bytes()).items()}


def _described(directory: AnyPath) -> _Contents:
    """Returns what is known of the files in a directory without reading them."""
    if not is_remote(directory):
        return {name: {"size": size} for name, size in file_sizes(directory).items()}
    infos = directory.infos().items()
    return {name: {k: x[k] for k in ("size", "crc32c") if k in x} for name, x in infos}


def _read(directory: AnyPath, names: Iterable[str]) -> _Contents:
    def read(name: str) -> tuple[str, dict[str, Any]]:
        file = directory / name
        size = file.stat().st_size
        crc32c, sha256 = google_crc32c.Checksum(), hashlib.sha256()
        block = _REMOTE_BLOCK_BYTES if is_remote(file) else _BLOCK_BYTES
        for start in range(0, size, block):
            part = read_range(file, start, min(start + block, size))
            crc32c.update(part)
            if size <= _SMALL_BYTES:
                sha256.update(part)
        content = {"size": size, "crc32c": base64.b64encode(crc32c.digest()).decode()}
        return name, content | ({"sha256": sha256.hexdigest()} if size <= _SMALL_BYTES else {})

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(read, names))


def _compare(directory: AnyPath, listed: _Contents, found: _Contents) -> None:
    for name, content in found.items():
        for kind, value in content.items():
            expected = listed[name].get(kind, value)
            if value != expected:
                raise IncompleteCheckpoint(
                    f"{directory / name} is damaged: its {kind} is {value}, but {expected} in "
                    f"{CHECKSUMS}. Use another checkpoint or, if you changed the file yourself, "
                    f"delete {CHECKSUMS}."
                )
