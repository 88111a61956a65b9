"""Detects whether a run has several processes, and how this process connects to the others."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import re
from collections.abc import Mapping
from typing import Any

from mtf.base.errors import UserError

# Environment variables that mtf launch sets. The options take precedence over them.
ADDRESS, COUNT, INDEX = "MTF_COORDINATOR_ADDRESS", "MTF_PROCESS_COUNT", "MTF_PROCESS_INDEX"
_GPUS = "/dev/nvidia[0-9]*"
_OPTIONS = ("--coordinator-address", "--process-count", "--process-index")


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """Describes how this process connects to the other processes of its run.

    Attributes:
      found_in: the source of this information, such as "SLURM".
      arguments: the arguments for `jax.distributed.initialize`; JAX detects missing ones.
    """

    found_in: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options --coordinator-address, --process-count and --process-index."""
    add = parser.add_argument_group(
        "several processes (detected under mtf launch, SLURM, Open MPI, on TPU pods)"
    ).add_argument
    address = "address of process 0, or auto to let JAX detect it, for example on Kubernetes"
    add(_OPTIONS[0], metavar="HOST:PORT", help=address)
    add(_OPTIONS[1], metavar="N", help="number of processes of this run")
    add(_OPTIONS[2], metavar="I", help="number of this process, from 0")


def find_processes(
    environ: Mapping[str, str], options: argparse.Namespace | None = None
) -> ProcessInfo | None:
    """Returns how this process connects to the others, or None if it is the only one.

    Uses the options, or else the environment variables of mtf launch, SLURM, Open MPI or TPU pods,
    in this order.

    Raises:
      UserError: an option or environment variable is missing or invalid.
    """
    given = {name: getattr(options, name[2:].replace("-", "_"), None) for name in _OPTIONS}
    if list(given.values()) == ["auto", None, None]:
        return ProcessInfo("--coordinator-address auto")
    if any(given.values()):
        return _explicit(given)
    if ADDRESS in environ:
        return _explicit({name: environ.get(name) for name in (ADDRESS, COUNT, INDEX)})
    tasks = environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "1"))
    if "SLURM_STEP_NODELIST" in environ and tasks != "1":
        devices = _devices(environ, int(environ["SLURM_LOCALID"]), _tasks_on_node(environ))
        return ProcessInfo("SLURM", {"num_processes": int(tasks), "local_device_ids": devices})
    if environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        rank, size = (int(environ[f"OMPI_COMM_WORLD_LOCAL_{name}"]) for name in ("RANK", "SIZE"))
        return ProcessInfo("Open MPI", {"local_device_ids": _devices(environ, rank, size)})
    if "," in environ.get("TPU_WORKER_HOSTNAMES", ""):
        return ProcessInfo("TPU_WORKER_HOSTNAMES")
    return None


def _explicit(given: Mapping[str, str | None]) -> ProcessInfo | None:
    """Checks an address, count and index; returns how to connect, or None if the count is 1."""
    address, count, index = (value or "" for value in given.values())
    if count == "1":
        return None
    is_address = (
        re.fullmatch(r".+:[1-9]\d{,4}", address) and int(address.rpartition(":")[2]) < 2**16
    )
    are_numbers = count.isdecimal() and index.isdecimal()
    if not is_address or not are_numbers or int(index) >= int(count):
        shown = ", ".join(f"{name} is {value or 'missing'}" for name, value in given.items())
        raise UserError(
            f"{shown}. A run with several processes needs the address of process 0 (such as "
            "node001:12345), the number of processes, and the index of this process, which must "
            "be at least 0 and less than the number of processes."
        )
    numbers = {"num_processes": int(count), "process_id": int(index)}
    arguments = {"coordinator_address": address, **numbers}
    return ProcessInfo(next(iter(given)), {**arguments, "cluster_detection_method": "deactivate"})


def _devices(environ: Mapping[str, str], rank: int, num_processes: int) -> list[int] | None:
    """Returns which of the visible GPUs this process uses; None if there are fewer than processes.

    The processes of a node divide its GPUs, unless SLURM has assigned GPUs to each task. JAX would
    use one GPU per process.

    Args:
      environ: the environment variables.
      rank: the index of this process on its node.
      num_processes: the number of processes on this node.
    """
    visible, of_node = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("SLURM_GPUS_ON_NODE")
    gpus = len(visible.split(",")) if visible else int(of_node or len(glob.glob(_GPUS)))
    if of_node is not None and gpus < int(of_node):  # SLURM has assigned GPUs to each task.
        return list(range(gpus))
    share = gpus // num_processes
    return list(range(rank * share, (rank + 1) * share)) or None


def _tasks_on_node(environ: Mapping[str, str]) -> int:
    """Returns how many tasks of a SLURM step run on this node; "2(x3),1" describes four nodes."""
    tasks: list[int] = []
    described = environ["SLURM_STEP_TASKS_PER_NODE"]
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", described):
        tasks += [int(number)] * int(times or 1)
    return tasks[int(environ["SLURM_NODEID"])]
