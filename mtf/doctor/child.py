"""Processes of the report: `python -m mtf.doctor.child` prints JAX's devices as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str], folder: str, seconds: float) -> tuple[int | None, str, str]:
    """Runs `python -m ARGUMENTS` in a folder.

    Returns:
      Its status, or None if it took longer than `seconds`, its output, and the last lines of its
      errors.
    """
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", f"no result within {seconds:.0f} seconds"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, done.stdout, "\n".join(lines[-12:]) or f"status {done.returncode}"


def main() -> None:
    """Prints the devices that JAX finds."""
    import jax

    from mtf.partitioning import memory

    devices = jax.local_devices()
    kinds = [device.device_kind for device in devices]
    found = {
        "platform": devices[0].platform,
        "kinds": {kind: kinds.count(kind) for kind in kinds},
        "bytes": memory.device_bytes(devices),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
