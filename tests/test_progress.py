"""What takes long says what it does, and for how long."""

from __future__ import annotations

import io
import time

import pytest

from mtf.base import progress


def test_a_block_that_takes_long_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SHOWN", 1)
    with progress.waiting("restoring run"):
        time.sleep(2.5)
    assert capsys.readouterr().err == "restoring run … 0:01\nrestoring run … 0:02\n"


def test_a_short_or_hidden_block_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.waiting("restoring"):
        pass
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SHOWN", 0.05)
    with progress.waiting("restoring", shown=False):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_only_the_innermost_block_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SHOWN", 1)
    with progress.waiting("checking the run"), progress.waiting("reading a checkpoint"):
        time.sleep(1.5)
    assert capsys.readouterr().err == "reading a checkpoint … 0:01\n"


def test_a_step_is_printed_before_the_first_statistics_if_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = progress.Progress(9, None, stream=io.StringIO())
    shown.note("compiled")
    shown.tick(1)
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SHOWN", 0)
    shown.tick(2)
    shown.stats(3, 1.0, 0.5, 1.0, 100, 1)
    shown.tick(4)
    compiled, first, stats = shown.stream.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (compiled, first) == ("compiled", "step 2/9") and stats.startswith("step 3/9  loss 1.0")


def test_a_bar_without_a_terminal_prints_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_PER_LINE", 0.0)
    with progress.progress_bar("rank", 4) as advance:
        advance(1)
        advance(3)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("rank  0 of 4  ETA ") and last == "rank  4 of 4  ETA 0 s"
    with progress.progress_bar("rank", 4, shown=False) as advance:
        advance(4)
    assert capsys.readouterr().err == ""
