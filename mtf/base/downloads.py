"""Copies remote files to this machine, with a progress bar, and converts errors about paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mtf.base.errors import UserError
from mtf.base.progress import rate_bar
from mtf.storage import AnyPath, as_path, check_writable
from mtf.storage.copies import copy_of, local_copy, nearest_copy
from mtf.storage.errors import StorageError


def downloaded(path: str | AnyPath, setting: str) -> Path:
    """Returns a local path unchanged, or the path of a local copy of a remote file.

    Downloads the file if there is no copy yet. An existing copy is used even if the remote file has
    changed since. Raises a UserError that names the setting if the download fails.
    """
    with as_user_errors(setting):
        found = nearest_copy(as_path(path))
    try:
        return copied(found, setting)
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.')}. If there is no network, put a copy at {copy_of(found)}, or "
            "pass a local path."
        ) from error


def copied(
    path: str | AnyPath,
    setting: str,
    only: Callable[[str], bool] = lambda name: True,
    names: Collection[str] | None = None,
) -> Path:
    """Returns a local path unchanged, or the path of an up-to-date local copy of a remote path.

    Shows a progress bar; see `local_copy`. Raises a UserError that names the setting on failure.
    """
    with as_user_errors(setting):
        return local_copy(as_path(path), rate_bar, only, names=names)


def writable(directory: AnyPath, setting: str) -> AnyPath:
    """Returns a directory; raises a UserError that names the setting if it is not writable."""
    with as_user_errors(setting):
        check_writable(directory)
    return directory


@contextlib.contextmanager
def as_user_errors(setting: str) -> Iterator[None]:
    """Converts errors about paths to a UserError that names the setting."""
    try:
        yield
    except StorageError as error:
        raise UserError(f"{setting}: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"{setting}: {error.filename or error} does not exist.") from error
    except OSError as error:
        raise UserError(
            f"{setting}: {error.filename}: {error.strerror}. Set MTF_CACHE to a writable directory "
            "with enough space."
        ) from error
