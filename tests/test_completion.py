"""`mtf completion`: what TAB offers, asked as argcomplete's script asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtf.cli.completion import main
from tests.small import python

ROOT = Path(__file__).resolve().parents[1]
SMALL = "mtf run tests.config.example.small"


def request(line: str, answer: Path) -> dict[str, str]:
    """The environment variables with which argcomplete's script for bash asks."""
    return {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'@><=;|&(:",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }


LINES = [
    ("mtf ru", ["run"]),
    ("mtf run recipes.t0p", ["recipes.t0pp_xxl", "recipes.t0p_xxl"]),
    ("mtf plan recipes.quickstart --targ", ["--target"]),
    (f"{SMALL} --print ", ["all", "flat", "history", "python", "json", "sharding"]),
    (f"{SMALL} --apply fr", ["from_scratch"]),
    (f"{SMALL} --set model.network.em", ["model.network.emb_dim="]),
    (f"{SMALL} --set train_steps=5 bat", ["batch_size="]),
    (f"{SMALL} --set data.lengths.", ["data.lengths.inputs=", "data.lengths.targets="]),
    (f"{SMALL} --unset model.z", ["model.z_loss"]),
    (f"{SMALL} --help train", ["train_steps"]),
    (f"{SMALL} --allow model.network.dt", ["model.network.dtype"]),
    (f"{SMALL} --set model.network.dtype=", ["float32", "bfloat16"]),
    (f"{SMALL} --set model.network.dtype=b", ["bfloat16"]),
    (f"{SMALL} --set 'model.network.dtype=b", ["model.network.dtype=bfloat16"]),
    (f"{SMALL} --set model.network.scan_layers=", ["True", "False"]),
    (f"{SMALL} --set optimizer=", ["@tests.config.example.Sgd", "@tests.config.example.Adam"]),
    # Assignments that stand before count.
    (f"{SMALL} --set optimizer=@tests.config.example.Adam optimizer.b", ["optimizer.betas="]),
    (f"{SMALL} --set evaluation=None evaluation.", []),
]
# Answers each line in one process: argcomplete ends with `exit_method`, and takes descriptor 9.
_ANSWER = """
import argcomplete, json, os, sys
from mtf.cli import completion
from mtf.__main__ import COMMANDS

def end(status):
    raise EOFError

complete = argcomplete.autocomplete
argcomplete.autocomplete = lambda parser, **given: complete(parser, exit_method=end, **given)
for environment in json.load(sys.stdin):
    os.environ.update(environment)
    try:
        completion.complete(COMMANDS)
    except EOFError:
        pass
"""


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What bash is told for each line; it has divided words at `=` and `@`."""
    folder = tmp_path_factory.mktemp("answers")
    lines = [line for line, _ in LINES] + ["mtf ", f"{SMALL} --"]
    asked = [request(line, folder / str(i)) for i, line in enumerate(lines)]
    subprocess.run(
        [sys.executable, "-c", _ANSWER], cwd=ROOT, input=json.dumps(asked), text=True, check=True
    )
    answers = [(folder / str(i)).read_text().split("\013") for i in range(len(lines))]
    return {line: [*filter(None, found)] for line, found in zip(lines, answers, strict=True)}


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_words_of_a_line(line: str, expected: list[str], offered: dict[str, list[str]]) -> None:
    assert sorted(offered[line]) == sorted(expected)


def test_commands_and_options(offered: dict[str, list[str]]) -> None:
    assert {"run", "convert", "completion"} <= set(offered["mtf "])
    assert {"--set", "--help", "--dry-run"} <= set(offered[f"{SMALL} --"])


@pytest.mark.parametrize("line", ["mtf run rec", "mtf run recipes.t0pp_xxl --set model.network."])
def test_a_tab_imports_no_framework(line: str, tmp_path: Path) -> None:
    program = (
        "import os, sys, mtf.__main__\n"
        "heavy = {'jax', 'tensorflow', 'flax', 'optax', 'numpy', 'torch'}\n"
        "os._exit = lambda _: print(heavy & set(sys.modules))\n"
        "mtf.__main__.main()"
    )
    done = python("-c", program, status=None, **request(line, tmp_path / "answer"))
    assert "set()" in done.stdout.splitlines(), done.stderr
    assert (tmp_path / "answer").read_text().startswith(line.split()[-1])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([shell]) == 0
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script and "mtf" in script
