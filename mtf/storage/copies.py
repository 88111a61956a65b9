"""Makes local copies of remote files."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.storage import AnyPath, is_listable, is_remote
from mtf.storage.errors import StorageError

if TYPE_CHECKING:
    from mtf.storage.remote import RemotePath

# A context manager that shows progress, given the total amount and the unit. It yields a function
# to call with the amount done so far, the number of units done and the name of a file.
Bar = Callable[[int, str], contextlib.AbstractContextManager[Callable[[int, int, str], None]]]

_FILES_AT_ONCE = 8
_BLOCK_BYTES = 2**20
# Fields of fsspec's file descriptions that identify the content; the first one that is set is used.
_VERSIONS = (
    *("md5Hash", "crc32c", "ETag", "etag", "generation"),
    *("mtime", "LastModified", "Last-Modified", "size"),
)


def cache_directory() -> Path:
    """Returns the download directory: `$MTF_CACHE`, `$XDG_CACHE_HOME/mtf` or `~/.cache/mtf`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("MTF_CACHE") or f"{base}/mtf").expanduser()


def copy_of(path: str | AnyPath) -> Path:
    """Returns the path of the local copy of a remote path, whether or not the copy exists."""
    return cache_directory() / str(path).replace("://", "/")


def nearest_copy(path: AnyPath) -> AnyPath:
    """Returns the path of a complete local copy, or `path` itself if it is local or has no copy.

    Does not check whether the remote files have changed. A file that the user has placed at the
    path of the copy is also used.
    """
    if not is_remote(path):
        return path
    target = copy_of(path)
    if target.is_file() or (target.is_dir() and _described(target).is_file()):
        return target
    inside = (_described(copy_of(parent)).is_file() for parent in path.parents)
    return target if target.exists() and any(inside) else path


def local_copy(
    path: AnyPath,
    bar: Bar = lambda total, unit: contextlib.nullcontext(lambda done, num_units, name: None),
    only: Callable[[str], bool] = lambda name: True,
    to: Path | None = None,
    names: Collection[str] | None = None,
) -> Path:
    """Returns the path of an up-to-date local copy of a file or directory.

    Downloads files that are missing locally or have changed in the store, and removes copies of
    files that the store no longer has. If the store cannot be reached, an existing complete copy
    is used. Several processes may copy the same files at the same time.

    Args:
      path: a remote path, or a local path, which is returned unchanged.
      bar: a context manager that shows the progress; see `Bar`.
      only: a function that returns whether to copy the file with a given relative path.
      to: the path of the copy, or None for a path below `cache_directory()`.
      names: the relative paths of the files in a directory that cannot be listed (https://), or
        None to list the directory.

    Raises:
      StorageError: the store refuses the request or cannot be reached.
      OSError: the file does not exist, or the copy cannot be written.
    """
    if not is_remote(path):
        return path
    target = to or copy_of(path)
    try:
        stored = _stored(path, names)
    except StorageError as error:
        if error.kind == "network" and (_described(target).is_file() or target.is_file()):
            return target
        raise
    files = {name: info for name, info in stored.items() if not name or only(name)}
    for name in files:
        if ".." in name.split("/") or name.startswith("/"):
            raise StorageError(path, f"the name {name!r} would be outside the local copy {target}.")
    if any(info["size"] is None for info in files.values()):
        raise StorageError(path, "the server does not send the size of the file.")
    done, total = 0, sum(info["size"] for info in files.values())
    target.parent.mkdir(parents=True, exist_ok=True)
    for file in target.rglob("*"):
        name = file.relative_to(target).as_posix()
        if only(name) and name not in files and file.name[0] != "." and file.is_file():
            file.unlink(missing_ok=True)
    if not all(_is_copied(target / name, info) for name, info in files.items()):
        _described(target).unlink(missing_ok=True)
    from mtf.storage.pool import ReadingPool  # Showing a recipe does not need threads.

    with ReadingPool(_FILES_AT_ONCE) as pool, bar(total, "MB") as report:
        copies = pool.map(
            lambda each: _copy(path / each[0], target / each[0], each[1]), files.items()
        )
        for name, _ in zip(files, copies, strict=True):
            done += files[name]["size"]
            report(done, done // 10**6, name or path.name)
    if len(files) == len(stored) and "" not in files:
        _described(target).touch()  # This file marks the copy of the directory as complete.
    return target


@contextlib.contextmanager
def unchanged(directory: AnyPath) -> Iterator[None]:
    """Raises StorageError if the files of a remote checkpoint change while the block reads them.

    Metrics are excepted, because a run adds those of later evaluations. In a directory that cannot
    be listed, the files that have been read in place are checked.
    """
    if not is_remote(directory):
        yield
        return
    from mtf.storage.pool import ReadingPool  # Showing a recipe does not need threads.
    from mtf.storage.remote import READ_IN_PLACE

    def versions() -> dict[str, str]:
        found = directory.infos() if is_listable(directory) else {}
        return {name: _version(x) for name, x in found.items() if not name.startswith("metrics/")}

    before = versions()
    yield
    after = versions()
    paths = [path for path in READ_IN_PLACE if directory in (path, *path.parents)]
    with ReadingPool(_FILES_AT_ONCE) as pool:
        for path, info in zip(paths, pool.map(lambda x: x.fs.info(x.path), paths), strict=True):
            name = str(path).removeprefix(f"{directory}/")
            before[name], after[name] = _version(READ_IN_PLACE.pop(path)), _version(info)
    if changed := sorted(name for name, _ in before.items() ^ after.items()):
        raise StorageError(directory, f"{changed[0]} changed while the directory was read.")


def _stored(path: RemotePath, names: Collection[str] | None) -> dict[str, dict[str, Any]]:
    """Returns a dict mapping the relative paths of files to descriptions; "" is `path` itself."""
    if names is not None:
        return {name: path.fs.info((path / name).path) for name in names}
    found = {"": path.fs.info(path.path)} if path.is_file() else path.infos()
    if not found:
        raise FileNotFoundError(2, "There is no such file", str(path))
    return found


def _version(info: Mapping[str, Any]) -> str:
    return str(next(info[name] for name in _VERSIONS if info.get(name) is not None))


def _described(file: Path) -> Path:
    return file.with_name(f".{file.name}.stored")


def _is_copied(file: Path, info: Mapping[str, Any]) -> bool:
    try:
        same_size = file.stat().st_size == info["size"]
        return same_size and _described(file).read_text() == _version(info)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _copy(path: RemotePath, file: Path, info: Mapping[str, Any]) -> None:
    """Downloads a file unless an up-to-date copy exists."""
    if _is_copied(file, info):
        return
    partial = file.with_name(f".{file.name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as part:
        fcntl.flock(part, fcntl.LOCK_EX)  # Another process may copy the same file.
        if _is_copied(file, info):
            partial.unlink(missing_ok=True)
            return
        for _ in range(2):
            path.download(partial)
            # The file may have been replaced since it was listed, or while it was copied.
            before, info = info, path.fs.info(path.path)
            if _version(info) == _version(before) and _is_whole(partial, info):
                os.replace(partial, file)
                _described(file).write_text(_version(info))
                return
        partial.unlink()
        raise StorageError(
            path,
            "the file changes while it is copied, or the server sends wrong content. Try again "
            "when nothing writes the file.",
        )


def _is_whole(file: Path, info: Mapping[str, Any]) -> bool:
    """Returns whether a copy has the size and, for `gs://`, the checksum of the file in a store."""
    if info.get("contentEncoding"):  # gcsfs decompresses the content.
        return True
    if file.stat().st_size != info["size"]:
        return False
    if "crc32c" not in info:
        return True
    import google_crc32c  # Showing a recipe does not compare copies.

    checksum = google_crc32c.Checksum()
    with file.open("rb") as opened:
        while part := opened.read(_BLOCK_BYTES):
            checksum.update(part)
    return base64.b64encode(checksum.digest()).decode() == info["crc32c"]
