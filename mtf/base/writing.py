"""Writes files atomically, explains failed writes, and locks directories."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mtf.base import signals, strict_json
from mtf.base.errors import RunError, UserError, with_causes
from mtf.storage import AnyPath, is_remote, unfinished
from mtf.storage.errors import StorageError, why_not_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mtf.storage.remote import RemotePath

LOCK_FILE = ".lock"
# The T5X config of a run that was started with --engine t5x.
T5X_CONFIG_FILE = "t5x_config.json"
# The config of a job that writes files of a given layout, which may include another config.json.
JOB_FILE = "mtf_job.json"
TEMPORARY = ".*.tmp"

# Error numbers that only writing can cause, and those that reading can cause as well.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_OTHERS = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG)


# The presence of these files means that a directory is complete, so they are uploaded last.
_LAST = ("config.json", "info.json", "cache.json", "checkpoint", "commit_success.txt")


@contextlib.contextmanager
def new_directory(directory: AnyPath) -> Iterator[Path]:
    """Yields a temporary directory, and renames it to `directory` when the block succeeds.

    If `directory` is remote, the files are uploaded when the block succeeds; see
    `storage.unfinished`. If the block fails or a signal ends the process, the temporary directory
    is removed; after `kill -9`, the next call for the same `directory` removes it.

    Raises:
      UserError: another process is writing the directory, or the directory cannot be created.
      RunError: the disk is full or cannot be written to.
    """
    if is_remote(directory):
        with tempfile.TemporaryDirectory(prefix="mtf-") as name, signals.removed_on_stop(name):
            folder = Path(name)
            yield folder
            with unfinished(directory):
                upload(folder, directory)
        return
    temporary, lock = (directory.with_name(f".{directory.name}.{end}") for end in ("tmp", "lock"))
    with (
        locked(directory.parent, "OUT_DIR", shown=directory, name=lock.name),
        signals.removed_on_stop(temporary),
    ):
        shutil.rmtree(temporary, ignore_errors=True)  # An earlier command may have been killed.
        try:
            temporary.mkdir()
            yield temporary
            os.replace(temporary, directory)
        except Exception as error:
            reason = None if isinstance(error, UserError) else write_failure(error, temporary)
            if reason is None:
                raise
            raise RunError(
                f"{directory} could not be written: {reason}{free_space(temporary)}. Its files "
                "were removed. Free disk space or choose another directory, and try again."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def upload(folder: Path, directory: RemotePath) -> None:
    """Uploads the files in a folder; if that fails, deletes the files already uploaded."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    done: list[RemotePath] = []
    try:
        for file in sorted(files, key=lambda file: file.name in _LAST):
            done.append(directory / file.relative_to(folder).as_posix())
            done[-1].upload(file)
    except BaseException:
        for target in done:
            target.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(file: AnyPath) -> Iterator[IO[bytes]]:
    """Opens a file for writing; the file appears when the block succeeds."""
    if is_remote(file):
        with file.open("wb") as opened:
            yield opened
        return
    # The random part distinguishes processes that have the same id on two machines.
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as opened:
            yield opened
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(file: AnyPath, content: str | bytes) -> None:
    """Writes a file atomically; text is encoded as UTF-8."""
    with writing(file) as opened:
        opened.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def restored_on_refusal(file: AnyPath) -> Iterator[None]:
    """Restores a file, or its absence, if the block raises a UserError and its store answers."""
    before = file.read_bytes() if file.is_file() else None
    try:
        yield
    except UserError as error:
        if store_failed(error, file):
            raise
        with contextlib.suppress(OSError):
            if before is not None:
                write_atomically(file, before)
            else:
                file.unlink(missing_ok=True)
                file.parent.rmdir()  # This fails if the directory contains other files.
        raise


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty Matplotlib figure; width and height are in inches."""
    from matplotlib.figure import Figure  # Importing Matplotlib is slow.

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Figure, file: AnyPath) -> None:
    """Writes a Matplotlib figure atomically as a PNG file."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_atomically(file, image.getvalue())


@contextlib.contextmanager
def os_errors_refused(directory: AnyPath, setting: str) -> Iterator[None]:
    """Converts an OSError to a UserError that names the directory and its setting.

    A BrokenPipeError is raised unchanged, because it concerns stdout.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except StorageError as error:
        raise UserError(f"{setting}: {error}") from error
    except OSError as error:
        at = f" ({error.filename})" if str(error.filename) != str(directory) else ""
        raise UserError(
            f"{setting}: {directory} cannot be used: {error.strerror or error}{at}. Choose a "
            "directory that you can write to."
        ) from error


def write_failure(error: BaseException, directory: AnyPath) -> str | None:
    """Returns why a file in a directory could not be written; None if `error` has another cause.

    The causes of `error` are also examined. Failures to write local files are recognized by a text
    of `os.strerror` in a message.
    """
    if is_remote(directory):
        found = (why_not_written(each, directory) for each in with_causes(error))
        return next(filter(None, found), None)
    within = (str(directory), str(directory.absolute()))
    for each in with_causes(error):
        text, file = str(each), getattr(each, "filename", None)
        for number in _FULL + _OTHERS:
            is_here = number in _FULL or any(name in text for name in within)
            if os.strerror(number) in text and is_here:
                return os.strerror(number) + (f" ({os.fsdecode(file)})" if file else "")
    return None


def store_failed(error: BaseException, path: AnyPath) -> bool:
    """Returns whether the store of a path did not answer, so that it should not be asked again."""
    found = [each for each in with_causes(error) if isinstance(each, StorageError)]
    silent = [each for each in found if each.kind == "network"]
    return is_remote(path) and any(why_not_written(each, path) for each in silent)


def files_deleted(error: BaseException, directory: AnyPath) -> bool:
    """Returns whether a file could not be written because its directory was deleted meanwhile."""
    missing = (os.strerror(errno.ENOENT), "NOT_FOUND")  # of Python and of TensorStore
    texts = [str(each) for each in with_causes(error) if str(directory.absolute()) in str(each)]
    return any(word in text for text in texts for word in missing)


def free_space(directory: AnyPath) -> str:
    """Returns text such as "; 3.2 of 1,024.0 GB free" for a disk, and "" for remote storage."""
    if is_remote(directory):
        return ""
    status = os.statvfs(directory)
    if status.f_files and not status.f_favail:  # Some file systems do not count inodes.
        return "; no free inodes, so delete some files"
    usage = shutil.disk_usage(directory)
    unit, name = (1e9, "GB") if usage.total >= 1e9 else (1e6, "MB")
    return f"; {usage.free / unit:,.1f} of {usage.total / unit:,.1f} {name} free"


@contextlib.contextmanager
def locked(
    directory: AnyPath, setting: str, *, shown: AnyPath | None = None, name: str = LOCK_FILE
) -> Iterator[None]:
    """Locks a directory against other processes; creates it if necessary.

    The kernel releases the lock when the process ends, so a leftover lock file does no harm. On a
    file system without locks, the directory counts as locked while the process that the lock file
    names exists. A remote directory is not locked. When the block ends, the lock file is removed,
    and so are the directories that were created, if they are empty.

    Args:
      directory: the directory to lock.
      setting: the name of the setting to show in error messages.
      shown: the path to show in error messages, or None for `directory`.
      name: the name of the lock file.

    Raises:
      UserError: another process has locked the directory, or the directory is not writable.
    """
    if is_remote(directory):
        yield
        return
    file = directory / name
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        with os_errors_refused(directory, setting):
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = _hold(file, setting, shown or directory)
        try:
            with signals.removed_on_stop(file):
                yield
        finally:
            with contextlib.suppress(OSError):
                file.unlink()
            os.close(descriptor)
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # The folder is not empty.
                folder.rmdir()


def _hold(file: Path, setting: str, shown: AnyPath) -> int:
    """Locks the file and records this process in it; returns the file descriptor."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _refusal(file, setting, shown) from None
            except OSError:  # The file system does not support locks.
                if _named_process_lives(file):
                    raise _refusal(file, setting, shown) from None
            # The previous holder may have removed the file after `os.open` above.
            if file.exists() and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                holder = {
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                    "command": shlex.join(sys.orig_argv),
                }
                os.ftruncate(descriptor, 0)
                with contextlib.suppress(OSError):  # Later writes will report a full disk.
                    os.write(descriptor, f"{json.dumps(holder)}\n".encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def lock_holder(file: AnyPath) -> dict[str, str | int]:
    """Returns the "host", "pid", "since" and "command" of the process that a lock file names.

    The result is empty if no process uses the directory. After `kill -9`, the result still
    describes the killed process.
    """
    try:
        found = strict_json.read_object(file)
        int(found.get("pid", 0)).to_bytes(4)
        return found
    except (OSError, ValueError, TypeError, OverflowError):
        return {}


def process_exists(holder: Mapping[str, str | int]) -> bool | None:
    """Returns whether the process of a `lock_holder` exists, or None if it is on another host."""
    if holder.get("host") != socket.gethostname():
        return None
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _named_process_lives(file: Path) -> bool:
    holder = lock_holder(file)
    if not holder:
        return False
    # A process on another host may be alive.
    return process_exists(holder) is not False and holder.get("pid") != os.getpid()


def _refusal(file: Path, setting: str, shown: AnyPath) -> UserError:
    process = "another process"
    if holder := lock_holder(file):
        process = "process {pid} on {host}, since {since} ({command})".format(**holder)
    return UserError(
        f"{setting}: {shown} is in use by {process}. Wait for the process, stop it or choose "
        f"another {setting}. If the process no longer exists, delete {file}."
    )
