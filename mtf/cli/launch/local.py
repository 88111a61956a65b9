"""Starts the processes of a run on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.base.processes.process_info import ADDRESS, COUNT, INDEX

# Seconds to wait after the first failure before the other processes are killed.
_SECONDS_TO_END = 45.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf launch local`."""
    add = parser.add_argument
    add("--processes", type=int, required=True, metavar="N", help="number of processes")
    devices = "number of CPU devices per process, used instead of this machine's accelerators"
    add("--devices-per-process", type=int, metavar="N", help=devices)


def launch(options: argparse.Namespace) -> int:
    """Runs the processes and prints their output; returns the status of the first to fail, or 0."""
    for name in ("processes", "devices_per_process"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise UserError(f"--{name.replace('_', '-')} is {number}; expected at least 1.")
    is_cache = options.command[0] == "mtf.cache"
    command = [sys.executable, "-m", *([] if is_cache else ["mtf.run"]), *options.command]
    address = f"127.0.0.1:{_free_port()}"
    environments = [_variables(i, address, options) for i in range(options.processes)]
    if options.dry_run:
        for variables in environments:
            shown = " ".join(f"{name}={value}" for name, value in variables.items())
            print(shown, shlex.join(command))
        return 0
    interrupts = _Forwarded()
    with interrupts:
        interrupts.hold()
        processes = [_start(command, variables) for variables in environments]
        return _wait(processes, interrupts)


class _Forwarded(signals.Interrupts):
    """Collects all signals, which the launcher passes on; it ends after the processes."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []

    def record(self, number: int) -> bool:
        self.received.append(number)
        return True


def _variables(index: int, address: str, options: argparse.Namespace) -> dict[str, str]:
    """Returns the environment variables with which process `index` finds the other processes."""
    variables = {ADDRESS: address, COUNT: str(options.processes), INDEX: str(index)}
    if options.devices_per_process is not None:
        variables["JAX_PLATFORMS"] = "cpu"
        variables["JAX_NUM_CPU_DEVICES"] = str(options.devices_per_process)
    return variables


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _start(command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a process; except for process 0, its output lines are prefixed with its index."""
    is_first = variables[INDEX] == "0"
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables, signals.LAUNCHER: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=None if is_first else subprocess.PIPE,
        stderr=None if is_first else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # The process gets signals only from the launcher.
    )
    if process.stdout is not None:
        show = threading.Thread(target=_show, args=(process.stdout, variables[INDEX]), daemon=True)
        show.start()
    return process


def _show(output: IO[str], index: str) -> None:
    for line in output:
        print(f"[process {index}] {line}", end="", flush=True)


def _wait(processes: Sequence[subprocess.Popen[str]], interrupts: _Forwarded) -> int:
    """Waits for all processes; returns the status of the first that failed, or 0."""
    failed: int | None = None
    status = 0
    deadline, running = float("inf"), True
    while running:
        time.sleep(0.1)
        running = None in [process.poll() for process in processes]  # Poll all of them.
        while interrupts.received:
            _signal(processes, interrupts.received.pop(0))
        if failed is None and (failed := _failed(processes)) is not None:
            deadline = time.monotonic() + _SECONDS_TO_END
            status = processes[failed].returncode
            how = f"ended with status {status}"
            if status < 0:
                how = f"was ended by {signal.Signals(-status).name}"
            print(f"mtf launch: process {failed} of {len(processes)} {how}", file=sys.stderr)
        if time.monotonic() > deadline:
            _signal(processes, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _failed(processes: Sequence[subprocess.Popen[str]]) -> int | None:
    """Returns the index of a failed process, or None if no process has failed.

    A process that was killed by a signal takes precedence, because it makes the others fail.
    """
    statuses = {i: process.returncode for i, process in enumerate(processes) if process.returncode}
    return min(statuses, key=lambda i: (statuses[i] > 0, i), default=None)


def _signal(processes: Sequence[subprocess.Popen[str]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
