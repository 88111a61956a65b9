"""`mtf completion`: what TAB offers, asked in real shells and of the command that they ask."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mtf.completion.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
SMALL = "mtf run tests.config.example.small"
BREAKS = " \t\n\"'@><=;|&(:"  # COMP_WORDBREAKS of bash

Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offered:
    """What bash is told for a line."""
    monkeypatch.chdir(ROOT)

    def ask(line: str) -> list[str]:
        capsys.readouterr()
        assert main(["--line", line, "--breaks", BREAKS]) == 0
        return capsys.readouterr().out.splitlines()

    return ask


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mtf ru", ["run "]),
        ("mtf completion ", ["bash ", "zsh ", "fish "]),
        ("mtf run recipes.t0p", ["recipes.t0pp_xxl ", "recipes.t0p_xxl "]),
        ("mtf run tests/config/example.py:wi", ["with_list ", "with_function "]),
        ('mtf run "tests.config.example.small(', ["emb_dim=", "dropout_rate="]),
        ("mtf plan recipes.quickstart --targ", ["--target "]),
        (f"{SMALL} --print ", ["flat ", "history ", "python ", "json ", "sharding "]),
        (f"{SMALL} --pri", ["--print "]),
        (f"{SMALL} --print flat", ["flat "]),
        (f"{SMALL} --graph ", []),
        (f"{SMALL} --apply fr", ["from_scratch ", "frequent_checkpoints "]),
        # One level of the tree at a time.
        (f"{SMALL} --set mod", ["model.", "model_dir="]),
        (f"{SMALL} --set model.", ["model.network.", "model.z_loss=", "model.label_smoothing="]),
        (f"{SMALL} --set model.network.em", ["model.network.emb_dim="]),
        (f"{SMALL} --set train_steps=5 bat", ["batch_size="]),
        (f"{SMALL} --set data.lengths.", ["data.lengths.inputs=", "data.lengths.targets="]),
        (f"{SMALL} --unset model.z", ["model.z_loss "]),
        (f"{SMALL} --help train", ["train_steps "]),
        (
            f"{SMALL} --allow model.network.d",
            ["model.network.dropout_rate ", "model.network.dtype "],
        ),
        # Values; bash has divided the word at `=` and `@`.
        (f"{SMALL} --set model.network.dtype=", ["float32 ", "bfloat16 "]),
        (f"{SMALL} --set model.network.dtype=b", ["bfloat16 "]),
        (f"{SMALL} --set 'model.network.dtype=b", ["model.network.dtype=bfloat16 "]),
        (f"{SMALL} --set model.network.scan_layers=", ["True ", "False "]),
        (f"{SMALL} --set model.label_smoothing=", ["None "]),
        (f"{SMALL} --set train_steps=", []),
        (f"{SMALL} --set optimizer=", ["@tests.config.example.Sgd", "@tests.config.example.Adam"]),
        (f"{SMALL} --set evaluation=", ["@tests.config.example.Evaluation", "None "]),
        (
            "mtf run recipes.quickstart --set optimizer=@mtf.training.AdamW",
            ["mtf.training.AdamWConfig"],
        ),
        (
            "mtf run recipes.quickstart --set data.vocabulary=@mtf.builders.",
            ["mtf.builders.vocabulary.mt5", "mtf.builders.vocabulary.t5"],
        ),
        # Assignments that stand before count.
        (f"{SMALL} --set optimizer=@tests.config.example.Adam optimizer.b", ["optimizer.betas="]),
        (f"{SMALL} --set evaluation=None evaluation.", []),
    ],
)
def test_words_of_a_line(offered: Offered, line: str, expected: list[str]) -> None:
    found = offered(line)
    prefix = "tests.config.example.small(" if "(" in line else ""
    assert found == [f"{prefix}{each}" for each in expected]


def test_commands_and_options(offered: Offered) -> None:
    assert {"run ", "convert ", "completion ", "--version "} <= set(offered("mtf "))
    assert {"--set ", "--help ", "--dry-run "} <= set(offered(f"{SMALL} --"))


def test_a_shell_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "expected one of bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["mtf run rec", "mtf run recipes.t0pp_xxl --set model.network."])
def test_a_tab_imports_no_framework(line: str) -> None:
    program = (
        "import sys\nfrom mtf.__main__ import main\n"
        f"main(['completion', '--line', {line!r}])\n"
        "print({'jax', 'tensorflow', 'flax', 'optax', 'numpy', 'torch'} & set(sys.modules))"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source script\n"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -Uz compinit; compinit -u -d dump; source script\n",
    ),
    "fish": (["fish", "--no-config", "-i"], "source script\n"),
}


@pytest.mark.parametrize("shell", START)
def test_in_a_shell(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Types three unfinished words, with TAB after each; `mtf` notes with what it is run."""
    command, source = START[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{shell} is not installed")
    assert main([shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    program = tmp_path / "mtf"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = completion ]; then exec {sys.executable} -m mtf "$@"; fi\n'
        'echo "$@" > ran.new; mv ran.new ran\n'
    )
    program.chmod(0o755)
    typed = "mtf run recipes.quicks\t--set model.network.dt\tb\tmodel.z\t0\n"
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "TERM": "xterm", "HOME": str(tmp_path)}
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    os.close(inner)
    try:
        os.write(terminal, f"{source}true > ready\n".encode())
        _wait_for(tmp_path / "ready", terminal)
        os.write(terminal, typed.encode())
        _wait_for(tmp_path / "ran", terminal)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    ran = (tmp_path / "ran").read_text()
    words = "model.network.dtype=bfloat16 model.z_loss=0"
    assert ran == f"run recipes.quickstart --set {words}\n"


def _wait_for(file: Path, terminal: int) -> None:
    """Reads what a shell prints until a file exists."""
    printed, end = b"", time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, printed.decode(errors="replace")
        if select.select([terminal], [], [], 0.1)[0]:
            printed += os.read(terminal, 4096)
