"""A newcomer: README's first command, what it proposes at its end, and README's next commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mtf.jobs.train import report
from mtf.training.trackers import Sample
from tests import small
from tests.journeys import shell


def test_samples_that_are_compared_are_lines() -> None:
    samples = [Sample("3 May 1999", "1999-05-03", "1999-05-03"), Sample("1.2.1950", "b", "a c")]
    shown = "3 May 1999 → 1999-05-03 ✓\n1.2.1950   → a c ✗ (b)\n\n"
    assert report.samples_text(samples, is_compared=True) == shown
    assert report.samples_text([], is_compared=True) == ""
    blocks = report.samples_text(samples[1:], is_compared=False)
    assert blocks == "input      1.2.1950\ntrue       b\npredicted  a c\n\n"
    long = [*samples, Sample("word " * 20, "b", "c")]
    assert report.samples_text(long, is_compared=True).startswith("input      3 May 1999\n")


def test_a_long_input_is_not_cut_inside_a_sentinel() -> None:
    text = "sun day 1 < 2 " + "x" * 30 + " wat<extra_id_0> h<extra_id_1> go on"
    assert report.shortened(text) == "sun day 1 < 2 " + "x" * 30 + " wat<extra_id_0>"[:16]
    assert report.shortened("a <b") == "a <b"


def _commands(section: str) -> list[str]:
    """The commands in the first code block of a section of README.md."""
    page = (small.ROOT / "README.md").read_text()
    (block,) = re.findall(rf"^## {section}\n.*?^```\n(.*?)^```", page, re.M | re.S)
    return [line.partition("  #")[0].rstrip() for line in block.splitlines()]


@pytest.mark.slow
def test_the_first_commands_of_the_readme(tmp_path: Path) -> None:
    (first,) = _commands("Start")
    install, command = first.split(" && ")
    assert (install, command) == ("pip install -e .", "python -m mtf.run recipes.quickstart")
    fewer = "'recipes.quickstart(train_steps=320)' --set 'model_dir=my run'"
    said = shell(command.replace("recipes.quickstart", fewer), tmp_path)
    [exact] = re.findall(r"^exact match    ([\d.]+)% of 256 held-out examples", said, re.MULTILINE)
    assert float(exact) >= 95
    lines = re.findall(r"^(.+?) +→ (\S+) ([✓✗])( \(\S+\))?$", said, re.MULTILINE)
    assert len(lines) == 10
    assert [mark for *_, mark, _ in lines].count("✓") >= 9
    assert "loss curve     my run/loss.png\n" in said
    assert (tmp_path / "my run" / "loss.png").read_bytes().startswith(b"\x89PNG")

    # What is printed works as it is printed.
    predict, export = re.findall(r"^(?:predict|export) +(python .*)$", said, re.MULTILINE)
    assert shell(predict, tmp_path) == f"{lines[0][1]}\n"
    shell(export, tmp_path)
    assert (tmp_path / "my run" / "hf" / "model.safetensors").is_file()
    # README.md shows this one. Its day is held out.
    code = 'import mtf; print(mtf.load("my run").generate("3rd of May 1999"))'
    assert shell(f"python -c {shlex.quote(code)}", tmp_path) == "1999-05-03\n"

    inspected = _commands("Inspect a run before it starts")
    assert len(inspected) == 6
    for command in inspected:
        shell(command, tmp_path)
    resume, longer, status = (
        each.replace("runs/quickstart-…", "'my run'").replace("runs/*", "'my run'")
        for each in _commands("Stop and resume")
    )
    shell(resume, tmp_path)
    assert "resuming from step 320" in shell(longer.replace("2000", "330"), tmp_path)
    assert re.search(r"finished.*330|330.*finished", shell(status, tmp_path), re.S)
