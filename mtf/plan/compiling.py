"""Compiles a config's program for a target in a child process. Imports no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf.errors import RunError, UserError
from mtf.plan.roofline import Roofline, roofline
from mtf.plan.targets import Target

if TYPE_CHECKING:
    import fiddle as fdl

_LINES_OF_ERROR = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known about a program on a target.

    Attributes:
      target: the devices.
      found: what `mtf.plan.child` found: sizes and work of each device, or the bytes that a
        compiler says are needed and available.
    """

    target: Target
    found: Mapping[str, Any]

    @property
    def needed_bytes(self) -> int | None:
        """The bytes that each device needs at the peak; None: the compiler does not say."""
        needed: int | None = self.found.get("peak_bytes", self.found.get("needed_bytes"))
        return needed

    @property
    def available_bytes(self) -> int:
        """The bytes that a program can use on each device, as far as known."""
        return self.found.get("available_bytes") or self.target.memory

    @property
    def compiles(self) -> bool:
        """Whether the compiler has not refused the program."""
        return "peak_bytes" in self.found

    @property
    def fits(self) -> bool:
        """Whether each device has the memory that the program needs."""
        return self.compiles and self.found["peak_bytes"] <= self.available_bytes

    @functools.cached_property
    def roofline(self) -> Roofline | None:
        """The lower bound of the time; None: not compiled, or the chip's figures are not known."""
        chip = self.target.chip
        if chip is None or not self.compiles:
            return None
        return roofline(chip, self.target.num_devices, self.found)

    @property
    def memory_by_part(self) -> dict[str, int]:
        """The bytes of each device at the peak, by part."""
        parts, peak = dict(self.found["parts"]), self.found["peak_bytes"]
        # XLA may need no array for all gradients at once.
        state = sum(size for name, size in parts.items() if name != "gradients")
        if "gradients" in parts:
            parts["gradients"] = max(0, min(parts["gradients"], peak - state))
        parts["activations, temporaries"] = max(0, peak - sum(parts.values()))
        return parts

    def as_json(self) -> dict[str, Any]:
        """Returns the plan as JSON can express it."""
        answer = {
            "target": str(self.target),
            "num_devices": self.target.num_devices,
            "fits": self.fits,
            "needed_bytes": self.needed_bytes,
            "available_bytes": self.available_bytes,
            **{name: value for name, value in self.found.items() if name != "available_bytes"},
        }
        if self.compiles:
            answer["memory_by_part"] = self.memory_by_part
        if self.roofline is not None:
            answer["roofline"] = {
                **dataclasses.asdict(self.roofline),
                "bound": self.roofline.bound,
                "binding": self.roofline.binding,
            }
        return answer


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compile.

    Attributes:
      config: config of a job.
      target: the devices.
      program: "train", "rank" or "decode"; None: what the job mainly runs.
      network: config of a training job whose network an evaluation or inference job uses.
      hlo: file to which the text of the compiled program is written.
    """

    config: fdl.Config
    target: Target
    program: str | None = None
    network: fdl.Config | None = None
    hlo: str | None = None


def compile_plan(wanted: Request) -> Plan:
    """Compiles a program for a target in a child process.

    Raises:
      UserError: the devices cannot be divided as the config says.
      RunError: the compiler failed or aborted.
    """
    from mtf import config as config_lib

    target, network = wanted.target, wanted.network
    request = {
        "config": config_lib.dump_json(wanted.config),
        "network": None if network is None else config_lib.dump_json(network),
        "target": str(target),
        "program": wanted.program,
        "hlo": wanted.hlo,
    }
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder, "answer.json"), Path(folder, "log.txt")
        status = _run_child(json.dumps(request), output, log)
        if not output.is_file():
            raise RunError(_why_aborted(target, status, log.read_text(errors="replace")))
        found = json.loads(output.read_text(encoding="utf-8"))
    if "refused" in found:
        raise UserError(found["refused"])
    if "failed" in found:
        raise RunError(f"The compiler of {target} failed: {found['failed']}")
    return Plan(target, found)


def _run_child(request: str, output: Path, log: Path) -> int:
    """Runs `mtf.plan.child` and returns its status; it ends when this process does."""
    command = [sys.executable, "-m", "mtf.plan.child", str(output)]
    with (
        log.open("w", encoding="utf-8") as messages,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=messages,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        ) as child,
    ):
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It failed at once.
            child.stdin.write(request + "\n")
            child.stdin.flush()
        return child.wait()  # stdin stays open: its end would end the child.


def _environment() -> dict[str, str]:
    from mtf.plan.topology import TPU_VARIABLES

    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # Programs are compiled for devices that are not here; those that are here are left alone.
    return {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **TPU_VARIABLES}


def _why_aborted(target: Target, status: int, log: str) -> str:
    if status < 0:
        number = -status
        how = f"was ended by signal {number} ({signal.strsignal(number)})"
        if number == signal.SIGKILL:
            how += ", probably because this machine has too little memory for the compiler"
    else:
        how = f"ended with status {status}"
    lines = [line for line in log.splitlines() if line.strip()][-_LINES_OF_ERROR:]
    return f"The compiler of {target} {how}. Its last lines:\n  " + "\n  ".join(lines)
