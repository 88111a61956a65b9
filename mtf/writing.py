"""Atomic writes, messages about failed writes, and locks of directories."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
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

from mtf import signals
from mtf.errors import RunError, UserError
from mtf.storage import AnyPath, StorePath, unfinished
from mtf.storage_errors import StorageError, failure_kind, is_about, reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCK_FILE = ".lock"
# T5X's config of a run that was started with --engine t5x.
T5X_CONFIG_FILE = "t5x_config.json"
TEMPORARY = ".*.tmp"

# Errors that only writing raises, and errors that reading may raise, too.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_OTHERS = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG)


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a temporary path beside `file`, which is renamed to `file` when the block succeeds.

    If the block fails, the temporary file or directory is removed.
    """
    # The random part separates processes on two machines with the same process id.
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, file)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
        raise


# These files say that a directory is complete, so they are uploaded last.
_LAST = ("config.json", "info.json", "cache.json", "checkpoint", "commit_success.txt")


@contextlib.contextmanager
def new_directory(directory: AnyPath) -> Iterator[Path]:
    """Yields a temporary directory, which becomes `directory` when the block succeeds.

    For an address, the files are uploaded when the block succeeds; see `storage.unfinished`. If the
    block fails or a signal ends the process, the temporary directory is removed; after `kill -9`,
    the next call for the same `directory` removes it. Raises a RunError if the disk is full or
    cannot be written to.
    """
    if isinstance(directory, StorePath):
        with tempfile.TemporaryDirectory(prefix="mtf-") as name, signals.removed_on_stop(name):
            folder = Path(name)
            yield folder
            with unfinished(directory):
                upload(folder, directory)
        return
    _remove_leftovers(directory)
    with (
        contextlib.ExitStack() as held,
        replacing(directory) as temporary,
        signals.removed_on_stop(temporary),
    ):
        try:
            temporary.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{directory} cannot be created: {error.strerror or error}") from error
        with contextlib.suppress(OSError):  # The file system has no locks.
            held.enter_context(_locked_folder(temporary))
        try:
            yield temporary
        except Exception as error:
            reason = None if isinstance(error, UserError) else write_failure(error, temporary)
            if reason is None:
                raise
            raise RunError(
                f"{directory} could not be written: {reason}{free_space(temporary)}. Nothing was "
                "left there. Make room, or choose another directory, and run the command again."
            ) from error


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Locks a folder; raises OSError if another process has locked it, or there are no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path) -> None:
    """Removes the temporary directories for `directory` of processes that were killed.

    On a file system without locks, they stay.
    """
    own = re.compile(rf"\.{re.escape(directory.name)}\.\d+-[0-9a-f]{{8}}\.tmp")
    for folder in directory.parent.glob(TEMPORARY):
        if own.fullmatch(folder.name):
            with contextlib.suppress(OSError), _locked_folder(folder):
                shutil.rmtree(folder)


def upload(folder: Path, directory: StorePath) -> None:
    """Uploads the files of a folder; if that fails, removes those that were uploaded."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    done: list[StorePath] = []
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
    """Opens a file that appears when the block succeeds."""
    if isinstance(file, StorePath):
        with file.open("wb") as opened:
            yield opened
        return
    with replacing(file) as temporary, temporary.open("wb") as opened:
        yield opened


def write_atomically(file: AnyPath, content: str | bytes) -> None:
    """Writes a file atomically; text is encoded as UTF-8."""
    if isinstance(file, StorePath):
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return
    with replacing(file) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_figure(figure: Figure, file: AnyPath) -> None:
    """Writes a figure of matplotlib as PNG, atomically."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_atomically(file, image.getvalue())


@contextlib.contextmanager
def os_errors_refused(directory: AnyPath, setting: str) -> Iterator[None]:
    """Turns an OSError into a UserError that names the directory and its setting.

    A broken pipe, of stdout, is raised as it is.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except StorageError as error:
        raise UserError(f"{setting}: {error}") from error
    except OSError as error:
        raise UserError(
            f"{setting}: {directory} cannot be used: {error.strerror} ({error.filename})."
        ) from error


def write_failure(error: BaseException, directory: AnyPath) -> str | None:
    """Returns why a file in a directory could not be written; None if the error has another cause.

    The causes of the error are searched, too, and messages for the words of the operating system.
    """
    if isinstance(directory, StorePath):
        for each in _chain(error):
            kind = failure_kind(each) if is_about(each, directory) else None
            if isinstance(each, StorageError) and is_about(each, directory):
                return each.strerror
            if kind is not None:  # Only a bucket can be missing when a file is written.
                return reason(directory, "bucket" if kind == "missing" else kind, each)
        return None
    within = str(directory.absolute())
    for each in _chain(error):
        if isinstance(each, OSError):
            file = None if each.filename is None else os.path.abspath(os.fsdecode(each.filename))
            if each.errno in _FULL and file is None:
                return each.strerror
            if each.errno in _FULL + _OTHERS and file is not None and file.startswith(within):
                return f"{each.strerror} ({file})"
        text = str(each)
        for number in _FULL + _OTHERS:
            if os.strerror(number) in text and (number in _FULL or within in text):
                return os.strerror(number)
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """Returns an error, its causes, and the errors in an exception group."""
    found = [error]
    for each in found:
        inside = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        causes = (each.__cause__, each.__context__, *inside)
        found += [cause for cause in causes if cause is not None and cause not in found]
    return found


def free_space(directory: AnyPath) -> str:
    """Returns the free space of a disk as text: "; 3.2 of 1,024.0 GB free"; "" for a store."""
    if isinstance(directory, StorePath):
        return ""
    usage = shutil.disk_usage(directory)
    unit, name = (1e9, "GB") if usage.total >= 1e9 else (1e6, "MB")
    return f"; {usage.free / unit:,.1f} of {usage.total / unit:,.1f} {name} free"


@contextlib.contextmanager
def locked(
    directory: AnyPath, setting: str, *, shown: AnyPath | None = None, name: str = LOCK_FILE
) -> Iterator[None]:
    """Locks a directory, which is created if necessary, against other processes.

    Stores have no locks: a directory there is not locked. Messages name the directory, or `shown`
    instead.

    The kernel locks the file `name` and releases it when the process ends, so a leftover file
    does no harm. On a file system without locks, the process that the file names is looked up.
    At the end the file is removed, and the directories that were created, if they are empty.
    Raises a UserError if another process has locked the directory, or it cannot be written to.
    """
    if isinstance(directory, StorePath):
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
            with contextlib.suppress(OSError):  # It is not empty.
                folder.rmdir()


def _hold(file: Path, setting: str, shown: AnyPath) -> int:
    """Opens and locks the file, and writes the process into it; returns the file descriptor."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _refusal(file, setting, shown) from None
            except OSError:  # The file system has no locks.
                if _named_process_lives(file):
                    raise _refusal(file, setting, shown) from None
            # The previous process may have removed the file after it was opened here.
            if file.exists() and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                os.ftruncate(descriptor, 0)
                with contextlib.suppress(OSError):  # A full disk is reported by later writes.
                    os.write(descriptor, _this_process().encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _this_process() -> str:
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": shlex.join(sys.orig_argv),
    }
    return f"{json.dumps(holder)}\n"


@contextlib.contextmanager
def named_in_store(directory: AnyPath) -> Iterator[None]:
    """Writes which process uses a directory of a store, where `locked` does nothing.

    The file is removed at the end; after `kill -9` it remains, and does no harm.
    """
    if not isinstance(directory, StorePath):
        yield
        return
    file = directory / LOCK_FILE
    with contextlib.suppress(OSError):
        file.write_text(_this_process())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def lock_holder(directory: AnyPath) -> dict[str, str | int]:
    """Returns host, pid, since and command of the process that uses a directory.

    Empty if none does; after `kill -9`, the process no longer exists.
    """
    return _holder(directory / LOCK_FILE)


def process_exists(holder: Mapping[str, str | int]) -> bool | None:
    """Returns whether there is a process with the id of a `lock_holder`; None on another host."""
    if holder.get("host") != socket.gethostname():
        return None
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _holder(file: AnyPath) -> dict[str, str | int]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _named_process_lives(file: Path) -> bool:
    holder = _holder(file)
    if not holder:
        return False
    # A process on another host may be alive.
    return process_exists(holder) is not False and holder.get("pid") != os.getpid()


def _refusal(file: Path, setting: str, shown: AnyPath) -> UserError:
    process = "another process"
    if holder := _holder(file):
        process = "process {pid} on {host}, since {since} ({command})".format(**holder)
    return UserError(
        f"{setting}: {shown} is in use by {process}. Wait for the process, stop it or choose "
        f"another {setting}. If the process no longer exists, delete {file}."
    )
