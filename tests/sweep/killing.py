"""Kills a sweep in one of its runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests import small


def kill_in(run_dir: Path, command: list[str], cwd: Path) -> None:
    """Starts a sweep, kills it when a run begins, and waits until the run has saved and ended."""
    with small.start(command, cwd) as process:
        _wait_until(lambda: (run_dir / "config.json").exists() or process.poll() is not None)
        assert process.poll() is None
        process.kill()
        process.communicate()
    # The run notices that its parent is gone.
    _wait_until(lambda: not _is_running(run_dir))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(run_dir: Path) -> bool:
    """Whether a process has this run directory as its own."""
    found = subprocess.run(
        ["pgrep", "-f", f"model_dir={run_dir}"], capture_output=True, text=True, check=False
    )
    return bool(found.stdout.strip())
