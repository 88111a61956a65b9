"""Finds the local or remote files that match a path or pattern."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from mtf.base.downloads import as_user_errors, copied
from mtf.base.errors import did_you_mean
from mtf.storage import AnyPath, as_path, check_bucket, is_remote
from mtf.storage.copies import copy_of
from mtf.storage.errors import StorageError

# Files of a dataset on the Hugging Face hub. Files in an archive follow its name and a slash.
_HUB = re.compile(r"(hf://datasets/([^/]+/[^/]+))/(.+)")


def matching(pattern: str, setting: str) -> list[Path]:
    """Returns the sorted paths of the files and directories that match a path or pattern.

    The result may be empty. Remote files are copied to this machine, except those of the Hugging
    Face hub (`hf://datasets/…`), which must have been downloaded. In remote patterns, `*`, `?` and
    `[…]` match within a name, and `**` matches any number of directories. Patterns are not
    supported for `https://`. Raises a UserError that names `setting` if a remote path cannot be
    read.
    """
    if _HUB.fullmatch(pattern):
        pattern = str(copy_of(pattern.replace(".zip/", "/")))
    with as_user_errors(setting):
        path = as_path(pattern)
        if not is_remote(path):
            found = [str(path)] if path.exists() else glob.glob(str(path), recursive=True)
            return sorted(map(Path, found))
        files: list[AnyPath] = [path] if path.is_file() else []
        if not files and glob.has_magic(pattern):
            bucket = path.parents[-1]
            matched = bucket.glob(path.relative_to(bucket).as_posix())
            files = [each for each in matched if each.is_file()]
        return [copied(file, setting) for file in files]


def why_missing(pattern: str) -> str:
    """Returns a message that says why no file matches a pattern and suggests similar names."""
    if hub := _HUB.fullmatch(pattern):
        archive, _, inside = hub[3].partition(".zip/")
        folder, chosen = copy_of(hub[1]), f"{archive}.zip" if inside else f"--include '{hub[3]}'"
        command = f"hf download {hub[2]} --repo-type dataset {chosen} --local-dir {folder}"
        if inside:
            command += f" && python -m zipfile -e {folder}/{archive}.zip {folder}/{archive}"
        return f"{pattern} is not on this machine; to download it, run {command}"
    path = as_path(pattern)
    where = f" in {Path.cwd()}" if not is_remote(path) and not path.is_absolute() else ""
    try:
        check_bucket(path)
    except StorageError as error:
        return f"{pattern} does not exist: {error.strerror}"
    if glob.has_magic(pattern):
        return f"no file matches {pattern}{where}"
    if path.is_dir():
        return f"{pattern} is a directory; expected files, e.g. {pattern.rstrip('/')}/*.txt"
    names = []
    if path.parent.is_dir():
        names = [entry.name for entry in path.parent.iterdir()]
    elif not is_remote(path):
        return f"{pattern} does not exist{where}, nor does the folder {path.parent}"
    return f"{pattern} does not exist{where}.{did_you_mean(path.name, names)}"
