"""Runs a module as several processes of one computation."""

from __future__ import annotations

import socket
import subprocess

from tests.small import start_python


def start_processes(
    module: str, num_processes: int, *arguments: object
) -> list[subprocess.Popen[str]]:
    """Starts `python -m MODULE PROCESS NUM_PROCESSES PORT ARGUMENTS…` so many times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = [
        ("-m", module, *map(str, (i, num_processes, port, *arguments)))
        for i in range(num_processes)
    ]
    return [start_python(*each, stderr=subprocess.STDOUT, JAX_PLATFORMS="cpu") for each in commands]


def run_processes(module: str, num_processes: int, *arguments: object) -> list[str]:
    """As `start_processes`, to the end of all; returns what each printed."""
    processes = start_processes(module, num_processes, *arguments)
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
