"""Finds which of the processes of a run this one is, from options or from the environment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from mtf.errors import UserError

# Set by mtf.launch; the options of `mtf.run` with the same names come first.
ADDRESS, COUNT, INDEX = "MTF_COORDINATOR_ADDRESS", "MTF_PROCESS_COUNT", "MTF_PROCESS_INDEX"

# The range of ports from which one is derived from the id of a SLURM job.
_FIRST_PORT, _NUM_PORTS = 61_440, 4_094
_TPU_PORT = 61_438


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of the processes of a run this one is.

    Attributes:
      index: number of this process, from 0.
      count: number of processes.
      address: HOST:PORT at which process 0 listens; JAX's coordinator listens at the next port.
      found_in: where this was found, such as "SLURM".
    """

    index: int
    count: int
    address: str
    found_in: str

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_535:
            raise UserError(
                f"{self.address} ({self.found_in}) is not the address of process 0; expected "
                "HOST:PORT, for example node001:12345."
            )
        if not 0 <= self.index < self.count:
            raise UserError(
                f"The process index is {self.index} ({self.found_in}), but there are "
                f"{self.count} processes; expected 0 to {self.count - 1}."
            )

    @property
    def host(self) -> str:
        """The host of process 0."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port at which process 0 listens."""
        return int(self.address.rpartition(":")[2])

    @property
    def jax_address(self) -> str:
        """The address of JAX's coordinator."""
        return f"{self.address.rpartition(':')[0]}:{self.port + 1}"


def find_place(
    environ: Mapping[str, str],
    address: str | None = None,
    count: int | None = None,
    index: int | None = None,
) -> Place | None:
    """Returns the place of this process, or None if it runs alone.

    The first of these that names several processes decides: the arguments, mtf.launch's variables,
    Open MPI, SLURM, JobSet on Kubernetes, and TPU pods on Kubernetes.

    Raises:
      UserError: the arguments are incomplete, or the address of process 0 cannot be found.
    """
    given = {
        "--coordinator-address": address,
        "--process-count": count,
        "--process-index": index,
    }
    if any(value is not None for value in given.values()):
        missing = [name for name, value in given.items() if value is None]
        if address is None or count is None or index is None:
            raise UserError(
                f"{', '.join(missing)} missing: several processes need --coordinator-address "
                "HOST:PORT of process 0, --process-count and --process-index."
            )
        return Place(index, count, address, "options") if count > 1 else None
    for finder in (_launched, _open_mpi, _slurm, _jobset, _tpu):
        place = finder(environ)
        if place is not None:
            return place if place.count > 1 else None
    return None


def _launched(environ: Mapping[str, str]) -> Place | None:
    if ADDRESS not in environ:
        return None
    count, index = _number(environ, COUNT), _number(environ, INDEX)
    return Place(index, count, environ[ADDRESS], "environment variables MTF_…")


def _open_mpi(environ: Mapping[str, str]) -> Place | None:
    size = "OMPI_COMM_WORLD_SIZE"
    if size not in environ:
        return None
    count, index = _number(environ, size), _number(environ, "OMPI_COMM_WORLD_RANK")
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    # For example 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911, the addresses of mpirun's host.
    found = re.match(r"(\d+)\.\d+;(?:tcp://([^,:]+)|tcp6://(\[[^,\]]+))", uri)
    if found is None and count > 1:
        raise UserError(
            f"Open MPI started {count} processes but does not say where the first one is. Pass "
            "--coordinator-address HOST:PORT, --process-count and --process-index."
        )
    if found is None:
        return None
    host = found[2] or f"{found[3]}]"
    return Place(index, count, f"{host}:{_port(int(found[1]) >> 12)}", "Open MPI")


def _slurm(environ: Mapping[str, str]) -> Place | None:
    needed = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")
    if any(name not in environ for name in needed):
        return None
    job, _, count, index = (environ[name] for name in needed)
    nodes = environ["SLURM_STEP_NODELIST"]
    address = f"{first_host(nodes)}:{_port(int(job))}"
    tasks = environ.get("SLURM_STEP_NUM_TASKS", count)
    return Place(int(index), int(tasks), address, "SLURM")


def first_host(nodes: str) -> str:
    """Returns the first host of a list as SLURM writes it, such as "gpu[003-007,012],login1"."""
    found = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\])?([^,]*)", nodes)
    assert found is not None  # The pattern matches any text.
    return f"{found[1]}{found[2] or ''}{found[3]}"


def _jobset(environ: Mapping[str, str]) -> Place | None:
    """The variables of the manifests that mtf.launch writes, for pods of a JobSet."""
    name = environ.get("JOBSET_NAME")
    if name is None or "JOB_COMPLETION_INDEX" not in environ or "PROCESSES_IN_JOB" not in environ:
        return None
    job = environ.get("REPLICATED_JOB_NAME", "workers")
    in_job, job_index = _number(environ, "PROCESSES_IN_JOB"), int(environ.get("JOB_INDEX", 0))
    count = in_job * int(environ.get("NUM_JOBS", 1))
    index = job_index * in_job + _number(environ, "JOB_COMPLETION_INDEX")
    return Place(index, count, f"{name}-{job}-0-0.{name}:{_TPU_PORT}", "JobSet")


def _tpu(environ: Mapping[str, str]) -> Place | None:
    """The variables that Kubernetes sets on TPU pods."""
    hosts = [host for host in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if len(hosts) < 2 or "TPU_WORKER_ID" not in environ:
        return None
    index = _number(environ, "TPU_WORKER_ID")
    return Place(index, len(hosts), f"{hosts[0]}:{_TPU_PORT}", "TPU_WORKER_HOSTNAMES")


def _port(job: int) -> int:
    """Returns a port for a job; even, because JAX's coordinator has the next."""
    return _FIRST_PORT + job * 2 % _NUM_PORTS


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdigit():
        raise UserError(f"The environment variable {name} is {text!r}; expected a number.")
    return int(text)
