"""Checks whether the Hugging Face hub can be reached, and downloads files from it."""

from __future__ import annotations

import functools
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from mtf.errors import UserError
from mtf.extras import import_extra

_TIMEOUT_SECONDS = 10
# Variables that set the hub's libraries to offline mode, and the values that they accept for "yes".
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")
_MODEL = re.compile(r"(hf://)?([\w.-]+)/([\w.-]+?)(?:@([^/@]+))?")
_COPY = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]+/?$")
_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+?))?/?")


def import_datasets(purpose: str) -> ModuleType:
    """Returns the package `datasets`, set to offline mode if the hub is not available.

    Otherwise it would retry for 50 seconds or more. Raises UserError, which names `purpose`, if it
    is not installed.
    """
    datasets = import_extra("datasets", purpose)
    if not is_available() and hasattr(datasets, "config"):
        import huggingface_hub.constants

        datasets.config.HF_HUB_OFFLINE = True
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    return datasets


def endpoint() -> str:
    """Returns the address of the hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def is_available() -> bool:
    """Returns whether the hub answers; does not contact it in offline mode."""
    return offline_variable() is None and why_unreachable() is None


def offline_variable() -> str | None:
    """Returns the environment variable that forbids contacting the hub, if one is set."""
    return next((name for name in _OFFLINE if os.environ.get(name, "").upper() in _YES), None)


@functools.cache
def why_unreachable() -> str | None:
    """Returns why the hub cannot be reached, or None if it answers."""
    if "all" in urllib.request.getproxies():  # `datasets` may support it; `urllib` does not.
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
    """Returns a sentence that says why the hub is missing and what to set, or "" if it answers."""
    name = offline_variable()
    if name is not None:
        return (
            f" {name} is set, so only data downloaded earlier is available; unset it to download."
        )
    reason = why_unreachable()
    if reason is None:
        return ""
    return (
        f" {endpoint()} cannot be reached ({reason}), so only data downloaded earlier is "
        "available. Set HF_ENDPOINT to use another hub address, or HTTPS_PROXY to use a proxy."
    )


def model_name(source: str) -> tuple[str, str | None] | None:
    """Returns the repository and revision that `source` names, or None if it is a path.

    It names a model of the hub if it is `hf://OWNER/NAME[@REVISION]`, or OWNER/NAME[@REVISION] and
    there is no directory OWNER here.
    """
    match = _MODEL.fullmatch(source)
    if match is None or (not match[1] and (match[2].startswith(".") or Path(match[2]).exists())):
        return None
    return f"{match[2]}/{match[3]}", match[4]


def copied_model(path: str) -> str | None:
    """Returns the model of the hub whose copy in the hub's cache a path is; None if it is none."""
    match = _COPY.search(path)
    return f"{match[1]}/{match[2]}" if match else None


def download_model(source: str, choose: Callable[[list[str]], list[str]]) -> Path:
    """Downloads files of a model to the hub's local cache, if they are not there already.

    Args:
      source: see `model_name`.
      choose: returns the names of the files to download, given the names of all files.

    Returns:
      The local copy of the repository.

    Raises:
      UserError: the hub cannot provide the files, or the package huggingface_hub is missing.
    """
    found = model_name(source)
    assert found is not None
    repository, revision = found
    is_path = not source.startswith("hf://")
    missing = f"There is no {source} here; downloading it from the Hugging Face hub"
    purpose = missing if is_path else f"downloading {source}"
    hub = import_extra("huggingface_hub", purpose, "torch")
    try:
        if not is_available():
            # The directory of the files that were downloaded earlier.
            file = hub.hf_hub_download(
                repository, "config.json", revision=revision, local_files_only=True
            )
            return Path(file).parent
        names = choose(hub.HfApi().list_repo_files(repository, revision=revision))
        folder = hub.snapshot_download(repository, revision=revision, allow_patterns=names)
        return Path(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{f'There is no {source} here. ' if is_path else ''}The Hugging Face hub cannot "
            f"provide the model {repository}{f' of revision {revision}' if revision else ''} "
            f"({_first_line(error)}).{no_hub_hint()}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def download_folders(address: str, folders: Iterable[str], setting: str) -> Path:
    """Downloads folders of a dataset's repository to the hub's local cache.

    Files that are there already are not downloaded again.

    Args:
      address: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`.
      folders: names of folders in the repository or in FOLDER; they need not exist.
      setting: the setting of the address, for messages.

    Returns:
      The local copy of the repository or of FOLDER.

    Raises:
      UserError: the address is not of this form, or the hub cannot provide the files.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UserError(
            f"{setting} {address}: expected hf://datasets/OWNER/NAME[@REVISION][/FOLDER], for "
            "example hf://datasets/bigscience/P3"
        )
    repository, revision, folder = match.groups()
    prefix = f"{folder}/" if folder else ""
    import_datasets(f"reading {address}")  # Sets the offline mode.
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
            f"{setting} {address}: the Hugging Face hub cannot provide it "
            f"({_first_line(error)}).{no_hub_hint()}"
        ) from error
    found = Path(root) / (folder or "")
    if not found.is_dir():
        raise UserError(f"{setting} {address}: the repository has none of the tasks' files there")
    return found
