"""README's first command: what it prints at its end, and the two commands that it proposes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mtf.jobs.train import report
from mtf.training.trackers import Sample
from tests import small


def test_samples_that_are_compared_are_lines() -> None:
    samples = [Sample("3 May 1999", "1999-05-03", "1999-05-03"), Sample("1.2.1950", "b", "a c")]
    shown = "3 May 1999 → 1999-05-03 ✓\n1.2.1950   → a c ✗ (b)\n\n"
    assert report.samples_text(samples, is_compared=True) == shown
    assert report.samples_text([], is_compared=True) == ""
    blocks = report.samples_text(samples[1:], is_compared=False)
    assert blocks == "input      1.2.1950\ntrue       b\npredicted  a c\n\n"
    long = [*samples, Sample("word " * 20, "b", "c")]
    assert report.samples_text(long, is_compared=True).startswith("input      3 May 1999\n")


@pytest.mark.slow
def test_the_quickstart_has_learned_and_its_next_commands_work(tmp_path: Path) -> None:
    command = ["recipes.quickstart(train_steps=320)", "--set", "model_dir=my run"]
    said = small.run_process(command, tmp_path)
    [exact] = re.findall(r"^exact match    ([\d.]+)% of 256 held-out examples", said, re.MULTILINE)
    assert float(exact) >= 95
    lines = re.findall(r"^(.+?) +→ (\S+) ([✓✗])( \(\S+\))?$", said, re.MULTILINE)
    assert len(lines) == 10
    assert [mark for *_, mark, _ in lines].count("✓") >= 9
    assert "loss curve     my run/loss.png\n" in said
    assert (tmp_path / "my run" / "loss.png").read_bytes().startswith(b"\x89PNG")

    predict, export = (
        shlex.split(re.findall(rf"^{name} +(python .*)$", said, re.MULTILINE)[0])
        for name in ("predict", "export")
    )
    found = small.python(*predict[1:], cwd=tmp_path).stdout
    assert found == f"{lines[0][1]}\n"
    small.python(*export[1:], cwd=tmp_path)
    assert (tmp_path / "my run" / "hf" / "model.safetensors").is_file()
    # README.md shows this one. Its day is held out.
    code = 'import mtf; print(mtf.load("my run").generate("3rd of May 1999"))'
    assert small.python("-c", code, cwd=tmp_path).stdout == "1999-05-03\n"
