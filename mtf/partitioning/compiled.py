"""Stores compiled programs on this machine, so that a process need not compile them again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import warnings
from pathlib import Path
from typing import Any

import jax

from mtf.storage.copies import cache_directory

_MAX_BYTES = 2 * 2**30


def keep_compiled_programs() -> None:
    """Turns on JAX's persistent compilation cache, in `MTF_CACHE/compiled`.

    Call this function before anything is compiled. It does nothing if JAX_COMPILATION_CACHE_DIR or
    JAX_ENABLE_COMPILATION_CACHE=false is set, or if the folder is not writable. It does nothing
    with several processes either: only the first would write to its disk, so others would compile
    while it does not, and GPUs compare the speed of kernels across all processes that compile.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    if jax.distributed.is_initialized():
        return
    folder = cache_directory() / "compiled" / _machine()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # A process that was killed while it stored a program leaves it without a time of access.
        for file in folder.glob("*-cache"):
            if not file.with_name(f"{file.name.removesuffix('cache')}atime").exists():
                file.unlink()
        if os.access(folder, os.W_OK):
            # JAX warns and compiles if the file system has no locks.
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation")
            config.update("jax_compilation_cache_dir", str(folder))
            config.update("jax_compilation_cache_max_size", _MAX_BYTES)


def _machine() -> str:
    """Returns a name for this kind of CPU.

    XLA compiles for the features of the CPU, but JAX's keys do not contain them: a program that was
    compiled on another CPU would be loaded, and could end the process with SIGILL.
    """
    described = platform.machine()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        lines = re.findall(r"^(?:model name|flags|Features)\s*:.*", text, re.MULTILINE)
        described += str(lines[:2])
    return hashlib.sha256(described.encode()).hexdigest()[:16]
