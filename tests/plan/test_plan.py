"""`python -m mtf.plan`, to the end."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.plan import topology
from mtf.plan.__main__ import main
from tests.small import SETTINGS

TINY = ["--set", *(f"{name}={value!r}" for name, value in SETTINGS.items() if name != "optimizer")]
RECIPE = "recipes.quickstart(files='*.txt')"

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="libtpu is not installed (mtf-jax[tpu])"
)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def check_tiny(found: dict[str, Any]) -> None:
    """Checks what holds of the tiny recipe on every target with a mesh of 4 × 2."""
    assert found["fits"]
    assert found["mesh"] == {"data": 4, "fsdp": 1, "model": 2}
    # 8 rows of 32 inputs and 16 targets.
    assert found["tokens"] == 8 * (32 + 16)
    # Embeddings and matrices are split in two, norms are not; the first row is the vocabulary's.
    matrices = 2 * 384 * 32 + (4 + 8) * 32 * 32 + 2 * 3 * 32 * 64 + 2 * 2 * 32
    norms = (2 + 1 + 3 + 1) * 32
    assert found["parts"]["parameters"] == 4 * (matrices // 2 + norms)
    assert math.isclose(found["flops"] * 8, found["formula_flops"], rel_tol=0.15)
    assert found["uncorrected_flops"] > 0
    over_data = [each for each in found["collectives"] if each["axes"] == "data"]
    # The gradients are summed over the data axis.
    assert sum(each["operand_bytes"] for each in over_data) >= 2 * (matrices // 2)
    assert sum(found["memory_by_part"].values()) == found["needed_bytes"]


def test_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [RECIPE, "--target", "cpu:8", *TINY, "partitioner.num_partitions=2"]
    found = answer(capsys, *arguments)
    check_tiny(found)
    assert "roofline" not in found


def test_the_compiler_ends_with_the_command_that_waits_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mtf.plan.child", str(tmp_path / "answer.json")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    child.stdin.write(b'{"target": "cpu:1", "config": "{}", "network": null}\n')
    child.stdin.close()
    assert child.wait(timeout=120) == 1
    assert not (tmp_path / "answer.json").exists()


def test_a_compiler_that_ends_the_process_is_an_error_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")  # With it, XLA ends the process.
    assert main([RECIPE, "--target", "cpu:1", *TINY]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: The compiler of cpu:1 ended with status 1.")
    assert "xla_no_such_flag" in message


@pytest.mark.parametrize("program", ["rank", "decode"])
def test_evaluation(capsys: pytest.CaptureFixture[str], program: str) -> None:
    found = answer(capsys, RECIPE, "--target", "cpu:2", *TINY, "--program", program)
    assert found["kind"] == program
    # Parameters alone, in one copy on each device.
    matrices = 2 * 384 * 32 + (4 + 8) * 32 * 32 + 2 * 3 * 32 * 64 + 2 * 2 * 32
    assert found["parts"] == {"parameters": 4 * (matrices + (2 + 1 + 3 + 1) * 32)}
    # 8 rows: 32 inputs and 16 targets are scored, 16 are decoded.
    assert found["tokens"] == 8 * (16 if program == "decode" else 32 + 16)
    # One product with each matrix for each token, on two devices; decoding repeats a step for each
    # of 16 positions.
    assert 0.5 < found["flops"] * 2 / found["formula_flops"] < 1.5


@needs_libtpu
@pytest.mark.slow
def test_tpus(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [RECIPE, "--target", "v4:2x2x2", *TINY, "partitioner.num_partitions=2"]
    found = answer(capsys, *arguments)
    check_tiny(found)
    assert found["roofline"]["bound"] == max(found["roofline"]["seconds"].values())


def test_a_missing_compiler_is_named_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    assert main([RECIPE, "--target", "v4:4x8x8"]) == 2
    assert "pip install 'mtf-jax[tpu]'" in capsys.readouterr().err
    assert main([RECIPE, "--target", "h200:8x8"]) == 2
    assert "pip install --no-deps jax-cuda12-plugin==" in capsys.readouterr().err


def test_bad_input_is_refused_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([RECIPE, "--target", "v9:4x4"]) == 2
    assert "unknown chip 'v9'" in capsys.readouterr().err
    assert main([RECIPE, "--target", "cpu:2", "--set", "batch_sise=8"]) == 2
    assert "batch_size" in capsys.readouterr().err


def test_a_mesh_that_the_devices_do_not_make_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([RECIPE, "--target", "cpu:3", *TINY, "partitioner.num_partitions=2"]) == 2
    assert "The mesh needs a multiple of fsdp × num_partitions" in capsys.readouterr().err
    assert main(["recipes.t0_eval", "--target", "cpu:4"]) == 2
    assert "--network" in capsys.readouterr().err
