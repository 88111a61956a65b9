"""Records the machine and the software of a run. Does not import Fiddle."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mtf.base import strict_json
from mtf.base.writing import write_atomically
from mtf.storage import AnyPath, as_path

ENVIRONMENT_FILE = "environment.json"

# Packages whose versions are recorded if they are installed.
_PACKAGES = (
    *("mtf-jax", "fiddle", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorstore"),
    *("numpy", "ml_dtypes", "msgpack", "grain", "array-record", "sentencepiece", "safetensors"),
    *("seqio", "tensorflow", "tokenizers", "torch", "transformers"),
    *("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)

# Device files of GPUs (CUDA, CUDA in WSL, ROCm) and of TPUs.
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def package_versions() -> dict[str, str]:
    """Returns a dict mapping installed packages that can affect a run to their versions."""
    import importlib.metadata  # This import is slow, and not needed to show a recipe.

    versions: dict[str, str] = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def has_accelerator() -> bool:
    """Returns whether JAX would use a GPU or TPU of this machine. Does not import JAX."""
    if chosen := os.environ.get("JAX_PLATFORMS"):
        return chosen.partition(",")[0] != "cpu"
    import importlib.metadata  # This import is slow, and not needed to show most recipes.

    here = any(os.path.exists(path) for path in _GPU_FILES)
    if here and importlib.metadata.entry_points(group="jax_plugins"):
        return True
    return importlib.util.find_spec("libtpu") is not None and any(map(glob.glob, _TPU_FILES))


def write_environment(
    run_dir: str | AnyPath, devices: Sequence[str], own_modules: Iterable[str] | None = None
) -> None:
    """Writes environment.json; keeps a previously recorded working directory if it still exists.

    `own_modules` are the modules of the user that the config names; None keeps those recorded.
    """
    kept = _recorded(run_dir, "own_modules") or []
    environment = {
        "working_directory": working_directory(run_dir) or os.getcwd(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "git": git_state(os.getcwd()),
        "devices": list(devices),
        "own_modules": kept if own_modules is None else sorted(own_modules),
    }
    write_atomically(as_path(run_dir) / ENVIRONMENT_FILE, json.dumps(environment, indent=1) + "\n")


def working_directory(run_dir: str | AnyPath) -> str | None:
    """Returns the directory in which a run was first started, or None if it is unknown or gone."""
    folder = _recorded(run_dir, "working_directory")
    return folder if isinstance(folder, str) and os.path.isdir(folder) else None


def resume_command(run_dir: str | AnyPath) -> str:
    """Returns the command that resumes a run, with --trust if its config names the user's modules.

    The paths are quoted for a shell.
    """
    return f"python -m mtf.run --from {shlex.quote(str(run_dir))}{trust_option(run_dir)}"


def more_steps(length: int) -> int:
    """Returns a quarter of a run's steps, to one significant digit, which a message suggests."""
    return math.ceil(float(f"{length / 4:.1g}"))


def trust_option(run_dir: str | AnyPath) -> str:
    """Returns " --trust RUN_DIR" if the config of a run names the user's modules, otherwise ""."""
    return f" --trust {shlex.quote(str(run_dir))}" if _recorded(run_dir, "own_modules") else ""


def _recorded(run_dir: str | AnyPath, name: str) -> Any:
    """Returns a value in environment.json, or None if there is none."""
    try:
        return strict_json.read_object(as_path(run_dir) / ENVIRONMENT_FILE)[name]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def git_state(folder: str) -> dict[str, Any] | None:
    """Returns a folder's git revision and whether it is dirty, or None outside a repository."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if shutil.which("git") is None or (revision := git("rev-parse", "HEAD")) is None:
        return None
    dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"revision": revision, "dirty": dirty}


def hiding_file(package: str) -> Path | None:
    """Returns the file that Python imports instead of mtf's `package`, or None if there is none."""
    specs = [importlib.util.find_spec(name) for name in (package, "mtf")]
    found, mtf = (spec.origin if spec else None for spec in specs)
    if found is None or mtf is None:
        return None
    ours = Path(mtf).resolve().parents[1] / package / "__init__.py"
    return None if Path(found).resolve() == ours else Path(found)
