"""Compiles a training step for a target in a child process. Does not import JAX."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from mtf import config as config_lib
from mtf.base import signals
from mtf.base.errors import RunError, UserError
from mtf.cli.plan.targets import Target

if TYPE_CHECKING:
    import fiddle as fdl

_LINES_OF_ERROR = 5
# The child process only compiles, so it must not occupy the accelerators of this machine.
_VARIABLES = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def compile_plan(config: fdl.Config, target: Target) -> dict[str, Any]:
    """Compiles the step of a training job in a child process and returns the job's plan.

    The plan is a dict with the keys `target`, `platform`, `num_devices`, `available_bytes`, `fits`
    and those that `mtf.cli.plan.child` returns, which describe the memory and the work of each
    device or, if the program does not fit, only the memory.

    Raises:
      UserError: the mesh or the batch size does not fit the number of devices.
      RunError: the compiler failed or aborted.
    """
    # The child process does not know chips that a module of the user registered.
    fields = {"config": config_lib.dump_json(config), "target": pickle.dumps(target).hex()}
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    child = subprocess.run(
        [sys.executable, "-m", "mtf.cli.plan.child"],
        input=json.dumps(fields),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": path, signals.LAUNCHER: str(os.getpid()), **_VARIABLES},
    )
    if child.returncode:
        raise RunError(_why_aborted(target, child.returncode, child.stderr))
    found = json.loads(child.stdout.splitlines()[-1])
    if "refused" in found:
        raise UserError(found["refused"])
    if "failed" in found:
        raise RunError(f"The compiler for {target} failed: {found['failed']}")
    return {
        "target": str(target),
        "platform": target.platform,
        "num_devices": target.num_devices,
        "fits": "parts" in found and found["needed_bytes"] <= target.memory,
        **found,
        "available_bytes": target.memory,
    }


def _why_aborted(target: Target, status: int, log: str) -> str:
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    if status == -signal.SIGKILL:
        how += ", probably because this machine has too little memory for the compiler"
    lines = [line for line in log.splitlines() if line.strip()][-_LINES_OF_ERROR:]
    return f"The compiler for {target} {how}. Its last output was:\n  " + "\n  ".join(lines)
