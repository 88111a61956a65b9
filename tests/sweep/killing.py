"""Kills a sweep in one of its runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mtf.run_end import RunEnd, write_end
from tests import small


class KilledError(Exception):
    """Ends a sweep in one of its runs."""


class Stub:
    """Takes the place of the process of a run: its loss is the square of `model.z_loss`.

    Attributes:
      kills_at: how many runs end before the sweep is killed; None: it is not.
      fails: names of runs that fail.
      settings: the settings of the runs, the one that was killed included.
    """

    def __init__(self, kills_at: int | None = None, fails: Sequence[str] = ()) -> None:
        self.kills_at, self.fails = kills_at, fails
        self.settings: list[list[str]] = []

    def __call__(
        self, arguments: Sequence[str], settings: Sequence[str], run_dir: Path, interrupts: Any
    ) -> str:
        self.settings.append([text for text in settings if not text.startswith("model_dir=")])
        if len(self.settings) - 1 == self.kills_at:
            raise KilledError
        if run_dir.name in self.fails:
            return "failed"
        (z_loss,) = (float(text.partition("=")[2]) for text in settings if "z_loss" in text)
        (run_dir / "train").mkdir(parents=True)
        line = {"step": 1, "loss_per_target_token": z_loss**2}
        (run_dir / "train" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        write_end(run_dir, RunEnd("finished"))
        return "finished"


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
