"""Processes find each other, and none waits long for one that differs, failed or is absent."""

from __future__ import annotations

import time

import pytest

from tests.processes import start_processes


def join(count: int, *whats: str) -> list[tuple[int, str]]:
    """Returns the exit status of each process, and what it printed."""
    started = time.monotonic()
    processes = start_processes("tests.processes.one_of_several", count, *whats)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert time.monotonic() - started < 40
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_get_what_the_first_broadcasts(count: int) -> None:
    for status, text in join(count, "leave"):
        assert status == 0, text
        assert "joined, number 0\nleft\n" in text
        assert "error" not in text


@pytest.mark.slow
def test_one_runs_something_else() -> None:
    for status, text in join(3, "leave", "differ", "leave"):
        assert status == 2, text
        assert "error: Process 1 (host" in text
        assert "differ in the config:\n  process 0: b = 2\n  process 1: b = 3\n" in text
        assert "joined" not in text


@pytest.mark.parametrize(
    ("dead", "others"), [(1, (0, 2)), pytest.param(0, (1, 2), marks=pytest.mark.slow)]
)
def test_one_dies(dead: int, others: tuple[int, ...]) -> None:
    whats = ["wait"] * 3
    whats[dead] = "die"
    results = join(3, *whats)
    assert results[dead][0] == -9
    for other in others:
        status, text = results[other]
        assert status == 1, text
        assert f"error: Process {dead} (host" in text
        assert "died." in text


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 2])
def test_one_fails(failing: int) -> None:
    whats = ["wait"] * 3
    whats[failing] = "fail"
    for process, (status, text) in enumerate(join(3, *whats)):
        assert status == 1, text
        if process != failing:
            assert f"error: Process {failing} (host" in text
            assert "died. See its output for the reason." in text
        else:
            assert "error: the disk is full" in text


@pytest.mark.slow
@pytest.mark.parametrize("whats", [("leave", "leave", "absent"), ("absent", "leave")])
def test_one_never_comes(whats: tuple[str, ...]) -> None:
    for what, (status, text) in zip(whats, join(len(whats), *whats), strict=True):
        if what != "absent":
            assert status == 2, text
            assert "error: Waited 5 s, but not all processes of this run joined (the test" in text
