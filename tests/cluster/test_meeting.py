"""Processes meet, and none of them waits long for one that differs, died or never came."""

from __future__ import annotations

import time

import pytest

from tests.processes import start_processes


def meet(count: int, *whats: str) -> list[tuple[int, str]]:
    """Returns the exit status of each process, and what it printed."""
    started = time.monotonic()
    processes = start_processes("tests.cluster.one_of_meeting", count, *whats)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert time.monotonic() - started < 20
    return [(p.returncode, text) for p, text in zip(processes, outputs, strict=True)]


@pytest.mark.parametrize("count", [2, 4])
def test_all_know_what_the_first_says(count: int) -> None:
    for status, text in meet(count, "leave"):
        assert (status, text) == (0, "met, number 0\nleft\n")


def test_one_runs_something_else() -> None:
    results = meet(3, "leave", "differ", "leave")
    for status, text in results:
        assert status == 2, text
    for _, text in results[:2]:
        assert "error: Process 1 (host" in text
        assert "differ in the config:\n  process 0: b = 2\n  process 1: b = 3\n" in text


@pytest.mark.parametrize(("dead", "others"), [(1, (0, 2)), (0, (1, 2))])
def test_one_dies(dead: int, others: tuple[int, ...]) -> None:
    whats = ["wait"] * 3
    whats[dead] = "die"
    results = meet(3, *whats)
    assert results[dead][0] == -9
    for other in others:
        status, text = results[other]
        assert status == 1
        assert f"error: Process {dead} (host" in text
        assert "died.\n" in text


@pytest.mark.parametrize("failing", [0, 2])
def test_one_fails(failing: int) -> None:
    whats = ["wait"] * 3
    whats[failing] = "fail"
    for process, (status, text) in enumerate(meet(3, *whats)):
        assert status == 1
        if process != failing:
            assert f"Process {failing} (host" in text
            assert "failed: the disk is full\n" in text


def test_one_never_comes() -> None:
    results = meet(3, "leave", "leave", "absent")
    for status, text in results[:2]:
        assert status == 2
        assert "Waited 3 s at 127.0.0.1:" in text
        assert "but process 2 of 3 did not come" in text
    status, text = meet(2, "absent", "leave")[1]
    assert status == 2
    assert "Waited 3 s for process 0 at 127.0.0.1:" in text


def test_waiting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIET", "0.3")
    status, text = meet(3, "leave", "leave", "absent")[0]
    assert status == 2
    assert "Process 0 of 3 (the test) waits for process 2 at 127.0.0.1:" in text
    assert text.count("Start the same command on every host") == 1
    status, text = meet(2, "absent", "leave")[1]
    assert status == 2
    assert "Process 1 of 2 (the test) waits for process 0 at 127.0.0.1:" in text


def test_two_have_the_same_index() -> None:
    results = meet(3, "leave", "leave", "twice")
    assert [status for status, _ in results] == [2, 2, 2]
    texts = [text for _, text in results]
    assert sum("Two processes have the index 1: host" in text for text in texts) == 1
    assert "process 2 of 3 did not come" in texts[0]
