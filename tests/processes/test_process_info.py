"""A process finds out how it reaches the others, from options or from what started it."""

from __future__ import annotations

import argparse

import pytest

from mtf.base.errors import UserError
from mtf.base.processes.process_info import add_process_options, find_processes

SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
ONE_PER_NODE = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
TPU = {"TPU_WORKER_HOSTNAMES": "w-0.svc,w-1.svc", "TPU_WORKER_ID": "1"}
LAUNCHED = {
    "MTF_COORDINATOR_ADDRESS": "host:700",
    "MTF_PROCESS_COUNT": "3",
    "MTF_PROCESS_INDEX": "2",
}


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    return parser.parse_args(arguments)


def explicit(address: str, count: int, index: int) -> dict[str, object]:
    """Arguments for `jax.distributed.initialize` that leave nothing to detect."""
    found = {"coordinator_address": address, "num_processes": count, "process_id": index}
    return {**found, "cluster_detection_method": "deactivate"}


@pytest.mark.parametrize(
    ("environ", "source", "arguments"),
    [
        (SLURM, "SLURM", {"num_processes": 4, "local_device_ids": None}),
        (ONE_PER_NODE, "SLURM", {"num_processes": 2, "local_device_ids": [0, 1, 2, 3]}),
        (
            {**SLURM, "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "2"},
            "SLURM",
            {"num_processes": 4, "local_device_ids": [0]},
        ),
        (OPEN_MPI, "Open MPI", {"local_device_ids": None}),
        (TPU, "TPU_WORKER_HOSTNAMES", {}),
        (LAUNCHED, "MTF_COORDINATOR_ADDRESS", explicit("host:700", 3, 2)),
        ({**SLURM, **LAUNCHED}, "MTF_COORDINATOR_ADDRESS", explicit("host:700", 3, 2)),
    ],
)
def test_environments(environ: dict[str, str], source: str, arguments: dict[str, object]) -> None:
    found = find_processes(environ)
    assert found is not None
    assert (found.found_in, found.arguments) == (source, arguments)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        # A shell in an allocation of 4 tasks is one process.
        {name: value for name, value in SLURM.items() if "STEP" not in name},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_a_process_alone(environ: dict[str, str]) -> None:
    assert find_processes(environ) is None


def test_options_come_first() -> None:
    given = ["--coordinator-address", "[fe80::1]:500", "--process-count", "2"]
    found = find_processes(SLURM, options(*given, "--process-index", "1"))
    assert found is not None
    assert found.arguments == explicit("[fe80::1]:500", 2, 1)
    assert find_processes(SLURM, options("--process-count", "1")) is None
    found = find_processes({}, options("--coordinator-address", "auto"))
    assert found is not None
    assert found.arguments == {}


@pytest.mark.parametrize(
    ("environ", "given", "message"),
    [
        ({}, ["--coordinator-address=host:500"], "--process-count is missing, --process-index"),
        (LAUNCHED | {"MTF_COORDINATOR_ADDRESS": "host"}, [], "ADDRESS is host, .*node001:12345"),
        (LAUNCHED | {"MTF_COORDINATOR_ADDRESS": "host:99999"}, [], "ADDRESS is host:99999"),
        (LAUNCHED | {"MTF_PROCESS_INDEX": "3"}, [], "INDEX is 3.*less than the number of proc"),
        (LAUNCHED | {"MTF_PROCESS_COUNT": "x"}, [], "MTF_PROCESS_COUNT is x"),
        (SLURM, ["--process-count", "two"], "--process-count is two, --process-index is missing"),
    ],
)
def test_mistakes(environ: dict[str, str], given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_processes(environ, options(*given))
