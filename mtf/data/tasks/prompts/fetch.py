"""Downloads promptsource's sdist with pip into the user's cache, without installing or running it.

promptsource's metadata excludes current versions of Python, so pip is told to ignore the required
version. To determine promptsource's dependencies, pip would also run the `setup.py` in the
sdist; a stand-in for setuptools prevents this.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.base.progress import waiting
from mtf.base.writing import os_errors_refused
from mtf.data.tasks.prompts.templates import (
    ENVIRONMENT_VARIABLE,
    PROMPTSOURCE_VERSION,
    cached_archive,
)

SDIST_SHA256 = "f106c889778a0fe5590e7183904bf964e1a01691c8a29451e44f3df5ddef05f5"

_REQUIREMENT = f"promptsource=={PROMPTSOURCE_VERSION}"
_STAND_IN = f"""\
import pathlib, sys

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "promptsource-{PROMPTSOURCE_VERSION}.dist-info")
    info.mkdir()
    text = "Metadata-Version: 2.1\\nName: promptsource\\nVersion: {PROMPTSOURCE_VERSION}\\n"
    (info / "METADATA").write_text(text)
    return info.name

__legacy__ = sys.modules[__name__]
"""


def fetch() -> Path:
    """Downloads promptsource's sdist unless it is already in the cache; returns `cached_archive()`.

    Uses pip's settings for indexes, proxies and certificates. Raises UserError and leaves the cache
    unchanged if the cache is not writable, if pip is missing or fails, or if the SHA-256 is wrong.
    """
    target = cached_archive()
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SDIST_SHA256:
        return target
    with os_errors_refused(target.parent, "MTF_CACHE"):
        target.parent.mkdir(parents=True, exist_ok=True)
        # `os.replace` is atomic because the temporary directory is on the same file system.
        with (
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder,
            signals.removed_on_stop(folder),
        ):
            os.replace(_download(Path(folder)), target)
    return target


def _download(folder: Path) -> Path:
    package = folder / "stand_in" / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(_STAND_IN)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_REQUIREMENT} --hash=sha256:{SDIST_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary=promptsource", "--no-build-isolation"]
    command += ["--ignore-requires-python", f"--dest={folder}", f"--requirement={requirements}"]
    # Without PIP_USE_PEP517, versions of pip before 25.3 run setup.py if setuptools exists.
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PIP_USE_PEP517": "1"}
    with waiting("downloading promptsource"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    downloaded = folder / f"promptsource-{PROMPTSOURCE_VERSION}.tar.gz"
    if done.returncode == 0 and downloaded.is_file():
        return downloaded
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # Error messages of pip start with ERROR; those of Python, e.g. if pip is missing, do not.
    problem = " ".join([line for line in lines if line.startswith("ERROR:")] or lines[-1:])
    raise UserError(
        f"pip cannot download {_REQUIREMENT}: {problem or f'exit status {done.returncode}'}. "
        f"If there is no network access, copy {downloaded.name} to this machine and set "
        f"{ENVIRONMENT_VARIABLE} to its path"
    )
