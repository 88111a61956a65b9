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

from mtf import signals
from mtf.cluster.places import ADDRESS, COUNT, INDEX
from mtf.errors import UserError

# Seconds that the other processes have to end after one has failed.
_SECONDS_TO_END = 45.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf.launch local`."""
    add = parser.add_argument
    add("--processes", type=int, required=True, metavar="N", help="number of processes")
    devices = "CPU devices of each process, instead of this machine's accelerators"
    add("--devices-per-process", type=int, metavar="N", help=devices)


def launch(options: argparse.Namespace) -> int:
    """Starts the processes and shows their output; returns the status of the first that fails."""
    for name in ("processes", "devices_per_process"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise UserError(f"--{name.replace('_', '-')} is {number}; expected at least 1.")
    is_cache = options.command[0] == "mtf.cache"
    command = [sys.executable, "-m", *([] if is_cache else ["mtf.run"]), *options.command]
    places = [_variables(i, options) for i in range(options.processes)]
    if options.dry_run:
        for place in places:
            print(" ".join(f"{name}={value}" for name, value in place.items()), shlex.join(command))
        return 0
    with signals.Interrupts() as interrupts:
        interrupts.hold()
        processes = [_start(command, place) for place in places]
        return _wait(processes, interrupts)


def _variables(index: int, options: argparse.Namespace) -> dict[str, str]:
    address = f"127.0.0.1:{_free_port() if index == 0 else options.port}"
    options.port = int(address.rpartition(":")[2])
    place = {ADDRESS: address, COUNT: str(options.processes), INDEX: str(index)}
    if options.devices_per_process is not None:
        place["JAX_PLATFORMS"] = "cpu"
        place["JAX_NUM_CPU_DEVICES"] = str(options.devices_per_process)
    return place


def _free_port() -> int:
    """Returns a port that is free and whose successor, for JAX's coordinator, is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def _start(command: Sequence[str], place: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a process; only the first has the terminal, the output of others gets a prefix."""
    is_first = place[INDEX] == "0"
    process = subprocess.Popen(
        command,
        env={**os.environ, **place},
        stdin=subprocess.DEVNULL,
        stdout=None if is_first else subprocess.PIPE,
        stderr=None if is_first else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # The signals of a terminal come from here, once.
    )
    if process.stdout is not None:
        show = threading.Thread(target=_show, args=(process.stdout, place[INDEX]), daemon=True)
        show.start()
    return process


def _show(output: IO[str], index: str) -> None:
    for line in output:
        print(f"[process {index}] {line}", end="", flush=True)


def _wait(processes: Sequence[subprocess.Popen[str]], interrupts: signals.Interrupts) -> int:
    """Waits for all processes; returns the status of the first that failed, or 0."""
    failed: int | None = None
    deadline, told, running = float("inf"), 0, True
    while running:
        time.sleep(0.1)
        running = any(process.poll() is None for process in processes)
        if interrupts.number and not told:
            told = interrupts.number
            _signal(processes, told)
        if failed is None and (failed := _failed(processes)) is not None:
            deadline = time.monotonic() + _SECONDS_TO_END
            shown = _how(processes[failed].returncode)
            print(f"mtf.launch: process {failed} of {len(processes)} {shown}", file=sys.stderr)
        if time.monotonic() > deadline:
            _signal(processes, signal.SIGKILL)
    if failed is None:
        return 0
    status: int = processes[failed].returncode
    return status if status >= 0 else 128 - status


def _failed(processes: Sequence[subprocess.Popen[str]]) -> int | None:
    """Returns the process that failed, if one did; a killed one, because others end after it."""
    statuses = {i: process.returncode for i, process in enumerate(processes) if process.returncode}
    return min(statuses, key=lambda i: (statuses[i] > 0, i), default=None)


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _signal(processes: Sequence[subprocess.Popen[str]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
