"""Downloads promptsource's sdist through pip into the user's cache; never installs or runs it.

pip refuses promptsource on today's Pythons, and would run its `setup.py` to learn its
dependencies. An option makes it ignore the first, and a stand-in for setuptools answers the second.
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
    """Downloads promptsource's sdist to `cached_archive()` unless it is there; returns that path.

    pip downloads it, so that its own settings apply: indexes, proxies, certificates.

    Raises:
      UserError: pip is not installed or fails, or the file has another SHA-256. The cache is then
        left as it was.
    """
    target = cached_archive()
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SDIST_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the file appears there complete.
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder,
        signals.removed_on_stop(folder),
    ):
        os.replace(_download(Path(folder)), target)
    return target


def _download(folder: Path) -> Path:
    """Returns the path of the sdist, which pip has checked, in `folder`."""
    package = folder / "stand_in" / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(_STAND_IN)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_REQUIREMENT} --hash=sha256:{SDIST_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary=promptsource", "--no-build-isolation"]
    command += ["--ignore-requires-python", f"--dest={folder}", f"--requirement={requirements}"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    downloaded = folder / f"promptsource-{PROMPTSOURCE_VERSION}.tar.gz"
    if done.returncode == 0 and downloaded.is_file():
        return downloaded
    got = re.search(r"Got\s+([0-9a-f]{64})", done.stderr)
    if got:
        raise UserError(
            f"the index's {_REQUIREMENT} is not the file that is expected: its SHA-256 is "
            f"{got[1]}, not {SDIST_SHA256}; nothing was kept"
        )
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # pip's errors start with ERROR; those before it runs, such as Python without pip, do not.
    problem = " ".join([line for line in lines if line.startswith("ERROR:")] or lines[-1:])
    raise UserError(
        f"pip does not get {_REQUIREMENT}: {problem or f'exit status {done.returncode}'}. "
        f"Without a network, get {downloaded.name} another way and name it in "
        f"{ENVIRONMENT_VARIABLE}"
    )
