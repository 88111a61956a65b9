"""A process finds its place from options, or from what a scheduler sets."""

from __future__ import annotations

import pytest

from mtf.cluster.places import find_place, first_host
from mtf.errors import UserError

SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
JOBSET = {
    "JOBSET_NAME": "t0",
    "REPLICATED_JOB_NAME": "slice",
    "NUM_JOBS": "2",
    "JOB_INDEX": "1",
    "PROCESSES_IN_JOB": "4",
    "JOB_COMPLETION_INDEX": "2",
}
TPU = {"TPU_WORKER_HOSTNAMES": "w-0.svc,w-1.svc", "TPU_WORKER_ID": "1"}
LAUNCHED = {
    "MTF_COORDINATOR_ADDRESS": "host:700",
    "MTF_PROCESS_COUNT": "3",
    "MTF_PROCESS_INDEX": "2",
}


@pytest.mark.parametrize(
    ("environ", "index", "count", "host", "source"),
    [
        (SLURM, 3, 4, "gpu003", "SLURM"),
        (OPEN_MPI, 1, 2, "10.96.0.1", "Open MPI"),
        (JOBSET, 6, 8, "t0-slice-0-0.t0", "JobSet"),
        (TPU, 1, 2, "w-0.svc", "TPU_WORKER_HOSTNAMES"),
        (LAUNCHED, 2, 3, "host", "environment variables MTF_…"),
        ({**SLURM, **LAUNCHED}, 2, 3, "host", "environment variables MTF_…"),
    ],
)
def test_environments(
    environ: dict[str, str], index: int, count: int, host: str, source: str
) -> None:
    place = find_place(environ)
    assert place is not None
    assert (place.index, place.count, place.host) == (index, count, host)
    assert place.found_in == source


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        # A shell in an allocation of 4 tasks is one process.
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_a_process_alone(environ: dict[str, str]) -> None:
    assert find_place(environ) is None


def test_all_processes_of_a_job_find_the_same_ports() -> None:
    places = [find_place({**SLURM, "SLURM_PROCID": str(i)}) for i in range(4)]
    assert len({place and place.address for place in places}) == 1
    ports = set()
    for job in range(3_000):
        place = find_place({**SLURM, "SLURM_JOB_ID": str(job)})
        assert place is not None
        assert 1024 < place.port < 65_535
        ports |= {place.port} if job < 2_047 else set()
        assert place.jax_address == f"gpu003:{place.port + 1}"
    # The jobs before have all other ports, and JAX's are not among them.
    assert len(ports) == 2_047
    assert not ports & {port + 1 for port in ports}


def test_options_come_first() -> None:
    place = find_place(SLURM, "[fe80::1]:500", 2, 1)
    assert place is not None
    assert (place.index, place.count, place.host) == (1, 2, "fe80::1")
    assert place.jax_address == "[fe80::1]:501"
    assert find_place(SLURM, "host:500", 1, 0) is None


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("login1", "login1"),
        ("a1,b2", "a1"),
        ("gpu[003-007,012],login1", "gpu003"),
        ("gpu[12,15]", "gpu12"),
        ("rack1-n[01-04]-ib", "rack1-n01-ib"),
    ],
)
def test_first_host_of_slurms_lists(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, "host:500"), r"--process-count, --process-index missing"),
        (({}, "host", 2, 0), r"host \(options\) is not the address.*node001:12345"),
        (({}, "host:99999", 2, 0), "not the address"),
        (({}, "host:500", 2, 2), r"index is 2 \(options\), but there are 2 processes; .* 0 to 1"),
        (({**LAUNCHED, "MTF_PROCESS_COUNT": "x"},), "MTF_PROCESS_COUNT is 'x'; expected a number"),
        (
            ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": ""},),
            "does not say where the first one is. Pass --coordinator-address",
        ),
    ],
)
def test_mistakes(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_place(*arguments)  # type: ignore[arg-type]
