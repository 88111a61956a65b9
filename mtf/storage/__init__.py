"""Opens local paths and remote paths, which begin with `gs://`, `s3://` or `https://` (read-only).

All files that may be remote are opened through this package, except arrays, which TensorStore reads
and writes with the spec that `kvstore` returns.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.storage.errors import PACKAGES, READ_ONLY, StorageError, endpoint, has_user

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from mtf.storage.remote import RemotePath

    AnyPath = Path | RemotePath
else:
    AnyPath = Path  # fsspec is imported only for remote paths, because importing it is slow.

SCHEMES = ("gs://", "s3://", "https://")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_MISSPELLED = re.compile(r"(gs|s3|https?):/?(?!/)(.*)", re.DOTALL | re.IGNORECASE)
# The name of the marker file in a remote directory whose files are still being written.
UNFINISHED = "unfinished.txt"
USER_REFUSED = "the address contains a user name or password, which files and messages would show"


def has_scheme(text: str) -> bool:
    """Returns whether the text is a remote path such as gs://bucket/name."""
    return "://" in text


def is_remote(path: AnyPath | None) -> TypeIs[RemotePath]:
    """Returns whether a path is remote."""
    return path is not None and not isinstance(path, Path)


def is_listable(path: AnyPath) -> bool:
    """Returns whether the files in a directory can be listed; False for https://."""
    return not is_remote(path) or path.protocol not in READ_ONLY


def as_path(path: str | os.PathLike[str] | AnyPath) -> AnyPath:
    """Returns a `RemotePath` for an address, and otherwise a `Path` with `~` expanded.

    Raises StorageError if an address has an unknown scheme, has no bucket or lacks a slash.
    """
    text = str(path)
    if match := _ADDRESS.fullmatch(text):
        scheme, key = match[1], posixpath.normpath(match[2]).strip("/")
        if scheme not in PACKAGES:
            near = f" Did you mean {scheme.lower()}://?" if scheme.lower() in PACKAGES else ""
            raise StorageError(
                text, f"unknown scheme; expected a local path or {', '.join(SCHEMES)}.{near}"
            )
        if has_user(text):
            raise StorageError(text, f"{USER_REFUSED}.")
        if key in ("", ".") or match[2].startswith("/"):
            raise StorageError(text, "the name of the bucket or host is missing.")
        from mtf.storage.remote import RemotePath

        return RemotePath(f"{scheme}://{key}")
    if (match := _MISSPELLED.fullmatch(text)) and not os.path.exists(text):
        raise StorageError(
            text, f"the address lacks a slash. Did you mean {match[1].lower()}://{match[2]}?"
        )
    return Path(text).expanduser()


def check_bucket(path: AnyPath) -> None:
    """Raises StorageError if the bucket of a path does not exist."""
    if is_remote(path) and is_listable(path):
        try:
            found = as_path(f"{path.protocol}://{path.bucket}").exists()
        except StorageError as error:
            # An account may be allowed to write files but not to access the bucket's metadata.
            found = error.kind == "permission"
            if not found:
                raise
        if not found:
            raise StorageError(path, f"there is no bucket {path.bucket!r}.", "bucket")


def check_writable(directory: AnyPath) -> None:
    """Raises StorageError if files cannot be written to a directory, which need not exist yet."""
    if is_remote(directory):
        directory.mkdir()
        check_bucket(directory)
        return
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise StorageError(directory, f"{there} is not a writable directory.")


def remove_tree(directory: AnyPath) -> None:
    """Deletes a directory and its contents; ignores local files that cannot be deleted."""
    if is_remote(directory):
        directory.rmtree()
    else:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def unfinished(directory: AnyPath) -> Iterator[None]:
    """Marks a remote directory as unfinished during the block; deletes it if the block fails.

    The files of an earlier unfinished attempt are deleted first. Local directories are not changed.
    """
    if not is_remote(directory):
        yield
        return
    if (directory / UNFINISHED).is_file():
        directory.rmtree()
    (directory / UNFINISHED).write_text("The files in this directory are not complete.\n")
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageError):
            directory.rmtree()
        raise
    (directory / UNFINISHED).unlink()


def file_sizes(directory: AnyPath) -> dict[str, int]:
    """Returns a dict, sorted by path, mapping the relative paths of files to sizes in bytes."""
    if is_remote(directory):
        return {name: int(info["size"]) for name, info in directory.infos().items()}
    files = sorted(each for each in directory.rglob("*") if each.is_file())
    return {each.relative_to(directory).as_posix(): each.stat().st_size for each in files}


def read_range(file: AnyPath, start: int, stop: int) -> bytes:
    """Returns the bytes from `start` up to `stop`, or fewer if a local file is shorter."""
    if is_remote(file):
        return file.read_range(start, stop)
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


def kvstore(directory: AnyPath) -> dict[str, Any]:
    """Returns the TensorStore key-value store spec for a directory."""
    if not is_remote(directory):
        return {"driver": "file", "path": f"{directory.resolve()}/"}  # TensorStore rejects "..".
    folder = str(directory).split("/", 3)[3:]
    path = f"{folder[0]}/" if folder else ""
    # By default, TensorStore waits without an end, and retries for a quarter of an hour.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "5")
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    retries = {"max_retries": 3, "max_delay": "8s"}
    if directory.protocol == "gs":
        use_emulator()
        place = {"bucket": directory.bucket, "path": path}
        return {"driver": "gcs", **place, "gcs_request_retries": retries}
    if directory.protocol == "s3":
        spec: dict[str, Any] = {"driver": "s3", "bucket": directory.bucket, "path": path}
        spec["s3_request_retries"] = retries
        if "AWS_ACCESS_KEY_ID" in os.environ:  # Keeps TensorStore from logging its search.
            spec["aws_credentials"] = {"type": "environment"}
        if url := endpoint("s3"):
            spec |= {"endpoint": url, "aws_region": os.environ.get("AWS_REGION", "us-east-1")}
        return spec
    base = f"{directory.protocol}://{directory.bucket}"
    place = {"base_url": base, "path": f"/{path}"}
    return {"driver": "http", **place, "http_request_retries": retries}


def use_emulator() -> None:
    """Makes TensorStore use the server that the variable STORAGE_EMULATOR_HOST names, if any."""
    if url := endpoint("gs"):
        os.environ["TENSORSTORE_GCS_HTTP_URL"] = url
        # Otherwise TensorStore prints where it looks for credentials.
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")
