"""Versions, memory, cores, free space and environment variables."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mtf.copies import cache_directory
from mtf.doctor.report import Section
from mtf.environment import git_state, package_versions
from mtf.errors import UserError
from mtf.host_memory import available_bytes, gib, total_bytes
from mtf.requirements import PROJECT, installed_version, needs

_LEAST_FREE_BYTES = 2 * 2**30
_LONGEST_VALUE = 160
_PREFIXES = ("AWS_", "CUDA_", "HF_", "JAX_", "LIBTPU_", "MTF_", "NCCL_", "TENSORSTORE_", "TPU_",
             "XLA_")  # fmt: skip
_NAMES = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST"),
    *("HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONPATH", "TMPDIR", "XDG_CACHE_HOME"),
)
_SECRET = re.compile("AUTH|CREDENTIAL|KEY|PASSW|SECRET|SESSION|TOKEN", re.IGNORECASE)


def versions() -> Section:
    """Returns the versions of Python, the system and the packages that matter to a run."""
    found = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": platform.platform(),
    }
    found |= {"mtf": _own_place(), **package_versions()}
    return Section("versions", list(found.items()), _unmet())


def _own_place() -> str:
    """Returns where mtf is imported from and, of a checkout, its git revision."""
    root = Path(__file__).parents[2]
    git = git_state(str(root)) if (root / ".git").exists() else None
    if git is None:
        return str(root)
    return f"{root}, git {git['revision'][:10]}{' with changes' * git['dirty']}"


def _unmet() -> list[str]:
    """Returns which packages mtf needs and are missing or of a version that it does not support."""
    try:
        required = list(needs(PROJECT, frozenset()))
    except UserError as error:
        return [str(error)]
    problems = []
    for needed in required:
        version = installed_version(needed)
        if version is None:
            problems.append(f"{needed.name} is not installed: pip install '{needed}'")
        elif not needed.specifier.contains(version, prereleases=True):
            problems.append(f"{needed.name} is {version}: pip install '{needed}'")
    return problems


def host() -> Section:
    """Returns the memory, cores and free space of this machine."""
    available = available_bytes()
    free = "" if available is None else f", of which {gib(available)} are available"
    rows = [
        ("memory", f"{gib(total_bytes())}{free}"),
        ("cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"),
    ]
    problems = []
    places = {
        ".": Path.cwd(),
        "temporary": Path(tempfile.gettempdir()),
        "MTF_CACHE": cache_directory(),
    }
    for name, folder in places.items():
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        usage = shutil.disk_usage(existing)
        rows.append((f"disk ({name})", f"{gib(usage.free)} free of {gib(usage.total)}: {folder}"))
        if usage.free < _LEAST_FREE_BYTES:
            problems.append(f"{folder} has only {gib(usage.free)} of free space.")
    return Section("machine", rows, problems)


def variables(environ: Mapping[str, str] = os.environ) -> Section:
    """Returns the environment variables that matter to a run, without the values of secrets."""
    rows = [
        (name, "set (not shown)" if _SECRET.search(name) else _short(value))
        for name, value in sorted(environ.items())
        if name.upper() in _NAMES or name.startswith(_PREFIXES)
    ]
    return Section("environment variables", rows or [("none", "")])


def _short(value: str) -> str:
    text = " ".join(value.split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} …"
