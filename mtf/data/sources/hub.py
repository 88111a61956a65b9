"""Downloads files from the Hugging Face hub and reports why the hub is not available."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from mtf.base.errors import UserError
from mtf.base.extras import import_extra

_TIMEOUT_SECONDS = 10
# The hub's libraries switch to offline mode if any of these variables has any of these values.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")
_MODEL = re.compile(r"(hf://)?([\w.-]+)/([\w.-]+?)(?:@([^/@]+))?")
_COPY = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]+/?$")
_DATASET = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+?))?/?")


def import_datasets(purpose: str) -> ModuleType:
    """Returns the package `datasets`, in offline mode if the hub is not available.

    In online mode, the package would retry failed requests for 50 seconds or more. Raises a
    UserError that names `purpose` if the package is not installed.
    """
    datasets = import_extra("datasets", purpose)
    if not is_available() and hasattr(datasets, "config"):
        import huggingface_hub.constants

        datasets.config.HF_HUB_OFFLINE = True
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    return datasets


def endpoint() -> str:
    """Returns the URL of the hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def is_available() -> bool:
    """Returns whether the hub can be reached; in offline mode, returns False without a request."""
    return offline_variable() is None and why_unreachable() is None


def offline_variable() -> str | None:
    """Returns the environment variable that turns on offline mode, or None if none does."""
    return next((name for name in _OFFLINE if os.environ.get(name, "").upper() in _YES), None)


@functools.cache
def why_unreachable() -> str | None:
    """Returns why the hub cannot be reached, or None if it responds."""
    # These imports are slow, and showing a recipe does not need them.
    import ssl
    import urllib.error
    import urllib.request

    if "all" in urllib.request.getproxies():  # `datasets` may support ALL_PROXY; `urllib` does not.
        return None
    request = urllib.request.Request(endpoint(), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)


def no_hub_hint() -> str:
    """Returns sentences that say why the hub is unavailable and what to do, or "" if it works."""
    name = offline_variable()
    if name is not None:
        return (
            f" {name} is set, so only previously downloaded data is available. To download other "
            "data, unset it."
        )
    reason = why_unreachable()
    if reason is None:
        return ""
    return (
        f" {endpoint()} cannot be reached ({reason}), so only previously downloaded data is "
        "available. Set HF_ENDPOINT to use another hub, or HTTPS_PROXY to use a proxy."
    )


def model_name(source: str) -> tuple[str, str | None] | None:
    """Returns the repository and revision of a model on the hub, or None if `source` is a path.

    A model has the form `hf://OWNER/NAME[@REVISION]` or, unless the working directory contains
    OWNER, `OWNER/NAME[@REVISION]`.
    """
    match = _MODEL.fullmatch(source)
    if match is None or (not match[1] and (match[2].startswith(".") or Path(match[2]).exists())):
        return None
    return f"{match[2]}/{match[3]}", match[4]


def copied_model(path: str) -> str | None:
    """Returns the name of the model at `path`, or None if `path` is not in the hub's cache."""
    match = _COPY.search(path)
    return f"{match[1]}/{match[2]}" if match else None


def download_model(source: str, choose: Callable[[list[str]], list[str]]) -> Path:
    """Downloads files of a model to the hub's cache if needed and returns the local directory.

    `choose` takes the names of all files and returns those to download. Raises UserError if the hub
    cannot provide these files, or if the package huggingface_hub is not installed.
    """
    repository, revision = model_name(source) or (source, None)
    missing = "" if source.startswith("hf://") else f"{source} does not exist locally. "
    hub = import_extra("huggingface_hub", f"{missing}Downloading {source}", "torch")
    try:
        if not is_available():  # Use the files that have already been downloaded.
            options = {"revision": revision, "local_files_only": True}
            return Path(hub.hf_hub_download(repository, "config.json", **options)).parent
        names = choose(hub.HfApi().list_repo_files(repository, revision=revision))
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=names))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{missing}The Hugging Face hub cannot provide the model {repository}"
            f"{f' at revision {revision}' if revision else ''}"
            f"{'.' if (hint := no_hub_hint()) else f' ({_first_line(error)}).'}{hint}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def download_folders(path: str, folders: Iterable[str], setting: str) -> Path:
    """Downloads folders of a dataset repository and returns the local directory.

    `path` is a repository or a folder in a repository, and `folders` contains names of subfolders.
    Subfolders that do not exist, and files that are already in the hub's cache, are skipped.

    Raises a UserError that names `setting` if the path is not of the form
    `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, or if the hub cannot provide the files.
    """
    match = _DATASET.fullmatch(path)
    if match is None:
        raise UserError(
            f"{setting} {path}: expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER], for "
            "example hf://datasets/bigscience/P3"
        )
    repository, revision, folder = match.groups()
    prefix = f"{folder}/" if folder else ""
    import_datasets(f"reading {path}")  # Switch to offline mode if needed.
    import huggingface_hub

    try:
        root = huggingface_hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=revision,
            allow_patterns=[f"{prefix}{name}/*" for name in folders],
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{setting} {path}: the Hugging Face hub cannot provide these files "
            f"({_first_line(error)}).{no_hub_hint()}"
        ) from error
    found = Path(root) / (folder or "")
    if not found.is_dir():
        raise UserError(f"{setting} {path}: the repository does not contain the tasks' files")
    return found
