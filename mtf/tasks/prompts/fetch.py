"""promptsource's sdist, got through pip into the user's cache; nothing of it is installed or run.

pip refuses promptsource on today's Pythons, and would run its `setup.py` only to learn what it
depends on. It is told to ignore the first, and a stand-in for setuptools answers the second.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mtf import signals
from mtf.errors import UserError
from mtf.tasks.prompts.templates import ENVIRONMENT_VARIABLE, PROMPTSOURCE_VERSION, cached_archive

# As the Python Package Index publishes it.
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
    """Gets promptsource's sdist into `cached_archive()`, unless it is there; returns that path.

    pip is asked, so that its own settings hold: indexes, proxies, certificates.

    Raises:
      UserError: pip is not installed or does not get it, or it is not the file that is known by its
        SHA-256. The cache is then left as it was.
    """
    target = cached_archive()
    if target.is_file() and _sha256(target) == SDIST_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the file appears there as a whole.
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder,
        signals.removed_on_stop(folder),
    ):
        downloaded = _download(Path(folder))
        found = _sha256(downloaded)
        if found != SDIST_SHA256:
            raise UserError(_wrong_checksum(found))
        os.replace(downloaded, target)
    return target


def _download(folder: Path) -> Path:
    """Returns the sdist as pip has put it in `folder`."""
    package = folder / "stand_in" / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(_STAND_IN)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_REQUIREMENT} --hash=sha256:{SDIST_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary=promptsource", "--no-build-isolation"]
    command += ["--ignore-requires-python", f"--dest={folder}", f"--requirement={requirements}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    downloaded = folder / f"promptsource-{PROMPTSOURCE_VERSION}.tar.gz"
    if done.returncode == 0 and downloaded.is_file():
        return downloaded
    got = re.search(r"Got\s+([0-9a-f]{64})", done.stderr)
    if got:
        raise UserError(_wrong_checksum(got[1]))
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # pip's errors say ERROR; what runs before it, such as Python without pip, does not.
    problem = " ".join([line for line in lines if line.startswith("ERROR:")] or lines[-1:])
    raise UserError(
        f"pip does not get {_REQUIREMENT}: {problem or f'exit status {done.returncode}'}. "
        f"Where there is no network, get {downloaded.name} by another way and name it in "
        f"{ENVIRONMENT_VARIABLE}"
    )


def _wrong_checksum(found: str) -> str:
    return (
        f"the index's {_REQUIREMENT} is not the file that is expected: its SHA-256 is {found}, "
        f"not {SDIST_SHA256}; nothing was kept"
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
