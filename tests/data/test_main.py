"""`python -m mtf data`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtf.cli.data import main
from mtf.data.tasks.objectives import SpanCorruption
from tests.cache.helpers import NAME, mixture, text_task, write_cache


@pytest.fixture(autouse=True)
def few_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing is shown on a thousand examples instead of twenty thousand."""
    monkeypatch.setattr("mtf.cli.mixture_report._NUM_PACKED", 1000)


def test_a_cache_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_dir = write_cache(tmp_path)
    assert main([NAME, "--cache", str(cache_dir), "--lengths", "30/32", "-n", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 tasks" in shown
    (fruit,) = [line.split() for line in shown.splitlines() if line.startswith("food_fruit")]
    # Rate and share: 230 of 290. "Is thing N… a fruit?" is longer than 30 bytes from "and so" on.
    assert fruit[1:5] == ["230", "79.31", "230", "0"]
    (sums,) = [line.split() for line in shown.splitlines() if line.startswith("math_sums")]
    assert sums[1:5] == ["60", "20.69", "60", "30"]
    long = sum(len(f"Is thing {i}{' and so' * (i % 5)} a fruit?") > 30 for i in range(230))
    assert fruit[-1] == f"{long}/0"
    assert "packing 1,000 examples" in shown and "examples per row" in shown
    assert "# food_fruit" in shown and "# math_sums" in shown and "</s>" in shown


def test_sentinels_are_visible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_dir = write_cache(tmp_path, mixture((text_task(SpanCorruption()), None)))
    assert main(["plain_text", "--cache", str(cache_dir), "--lengths", "32/8", "-n", "1"]) == 0
    shown = capsys.readouterr().out
    assert "targets" in shown and shown.count("<extra_id_0>") == 2


def test_bad_input_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "No MIXTURE was given" in capsys.readouterr().err
    assert main(["x", "--cache", str(tmp_path)]) == 2
    assert "has no token cache" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["x", "--lengths", "1024"])
    assert "expected two lengths, e.g. 1024/256" in capsys.readouterr().err


def test_without_a_cache_rows_of_the_mirror_are_shown(
    prompts: Path, datasets_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "piqa_finish_sentence_with_correct_choice", "--vocabulary", "byt5", "-n", "1",
        "--data-dir", str(datasets_dir),
        "--templates", str(prompts),
    ]  # fmt: skip
    assert main(["--list", "piqa_finish", "--templates", str(prompts)]) == 0
    assert arguments[0] in capsys.readouterr().out.splitlines()
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert (
        "Without --cache" in shown
        and "first 200 records" in shown
        and "# piqa_finish_sentence" in shown
    )
