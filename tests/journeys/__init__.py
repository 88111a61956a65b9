"""What five people do with mtf from beginning to end, with the commands that they would type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import small


def shell(command: str, cwd: Path, **environment: str) -> str:
    """Runs a command line in bash, asserts that it succeeds; returns stdout and stderr."""
    variables = small.environment_variables() | {"JAX_PLATFORMS": "cpu"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
