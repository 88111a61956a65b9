"""`python -m mtf plan`, to the end."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.base import signals
from mtf.base.errors import UserError
from mtf.cli.plan import targets
from mtf.cli.plan.command import _VARIABLES, as_text, main
from mtf.cli.plan.targets import parse_target
from mtf.partitioning.chips import chip_of
from tests.plan.compile_kernels import CASES
from tests.small import SETTINGS, python

TINY = ["--set", *(f"{name}={value!r}" for name, value in SETTINGS.items() if name != "optimizer")]
RECIPE = "recipes.pretrain_text(files='*.txt')"

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
    over_data = [each for each in found["collectives"] if each["axes"] == "data"]
    # The gradients are summed over the data axis.
    assert sum(each["operand_bytes"] for each in over_data) >= 2 * (matrices // 2)
    assert sum(found["parts"].values()) == found["needed_bytes"]


def test_cpus(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [RECIPE, "--target", "cpu:8", *TINY, "partitioner.num_partitions=2"]
    found = answer(capsys, *arguments)
    check_tiny(found)
    assert "times" not in found
    target = targets.parse_target("v4:2x2x2")
    by_part = {"FLOPs": 0.00042, "network": 0.0}
    times = {"ideal": 0.0005, "at_least": 0.25, "estimate": 1.5, "by_part": by_part}
    times |= {"mfu": 0.5, "tokens_per_second": 1.1e6, "days": 0.001}
    text = as_text(RECIPE, target, {**found, "times": times, "steps": 86_400})
    assert "data 4 × fsdp 1 × model 2" in text
    assert "at least                    250 ms, one operation at a time (FLOPs 0.42 ms)" in text
    assert "XLA's estimate              1.50 s" in text
    assert "MFU 50.0%, 1.1M tokens/s, 0.00 days for 86,400 steps" in text
    assert "\ntry" not in text
    text = as_text(RECIPE, target, {**found, "with_minimal_remat": 48 * 2**30})
    advice = "model.network.remat_policy=minimal: about 48.00 GiB by estimate, and fewer FLOPs"
    assert f"try                         {advice}" in text
    text = as_text(RECIPE, target, {**found, "fits": False})
    assert "try                         model.network.remat_policy=full, a larger value" in text


def test_a_config_of_hugging_face_suffices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_heads": 2, "num_layers": 1}
    config = {"model_type": "t5", "vocab_size": 384, "feed_forward_proj": "gated-gelu", **sizes}
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    found = answer(capsys, str(tmp_path), "--target", "cpu:2", "--set", "batch_size=4")
    matrices = 2 * 384 * 32 + (4 + 8) * 32 * 32 + 2 * 3 * 32 * 64 + 2 * 2 * 32
    norms = (2 + 1 + 3 + 1) * 32
    assert found["parts"]["parameters"] == 4 * (matrices + norms)
    assert found["tokens"] == 4 * (512 + 128)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    assert main([str(tmp_path / "config.json"), "--target", "cpu:2"]) == 2
    assert "model_type is 'bert'; expected 't5'" in capsys.readouterr().err


def test_recipes_choose_values_for_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from mtf.base.environment import has_accelerator\n"
        "def recipe():\n    raise SystemExit(f'accelerator: {has_accelerator()}')\n"
    )
    for target, expected in (("cpu:1", "False"), ("v4:2x2x1", "True"), ("h100:1x8", "True")):
        with pytest.raises(SystemExit, match=f"accelerator: {expected}"):
            main(["mine.py:recipe", "--target", target])


@pytest.mark.slow
def test_the_compiler_ends_with_the_command_that_waits_for_it() -> None:
    request = {"target": "cpu:1", "config": "{}"}
    command = [sys.executable, "-m", "mtf.cli.plan.child"]
    ended = {**os.environ, signals.LAUNCHER: "0"}  # no process that exists
    child = subprocess.run(
        command, input=json.dumps(request).encode(), stdout=subprocess.PIPE, env=ended
    )
    assert child.returncode == -signal.SIGTERM
    assert not child.stdout


def test_a_compiler_that_ends_the_process_is_an_error_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")  # With it, XLA ends the process.
    assert main([RECIPE, "--target", "cpu:1", *TINY]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: The compiler for cpu:1 ended with status 1.")
    assert "xla_no_such_flag" in message


@needs_libtpu
@pytest.mark.slow
def test_tpus(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [RECIPE, "--target", "v4:2x2x2", *TINY, "partitioner.num_partitions=2"]
    found = answer(capsys, *arguments)
    check_tiny(found)
    times = found["times"]
    assert max(times["by_part"].values()) <= times["at_least"] < times["estimate"]


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4:2x2x1", "v5e:2x2", "v6e:2x2"])
def test_attention_kernels_are_compiled(target: str) -> None:
    done = python("-m", "tests.plan.compile_kernels", target, **_VARIABLES)
    assert [line[-2:] for line in done.stdout.splitlines()] == [" 2"] * len(CASES)


@needs_libtpu
@pytest.mark.slow
def test_the_step_for_a_tpu_contains_attention_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    length, heads, rows = 512, 4, 128
    arguments = [RECIPE, "--target", "v4:2x2x2", *TINY, "partitioner.num_partitions=2"]
    arguments += [
        f"batch_size={rows}",
        f"model.network.num_heads={heads}",
        "model.network.head_dim=64",
    ]
    arguments += [f"data.task_feature_lengths.{name}={length}" for name in ("inputs", "targets")]
    moved = {
        each: answer(capsys, *arguments, f"model.network.attention={each!r}")["moved_bytes"]
        for each in ("auto", "xla")
    }
    # Otherwise, a device at least writes the weights of three attentions. What it reads of them, or
    # of fewer rows, may be in the memory of the chip, which does not count.
    weights = 4 * (rows // 4) * (heads // 2) * length**2
    assert moved["xla"] - moved["auto"] > 3 * weights


def test_a_missing_compiler_is_named_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    assert main([RECIPE, "--target", "v4:4x8x8"]) == 2
    assert "pip install 'mtf-jax[tpu]'" in capsys.readouterr().err
    assert main([RECIPE, "--target", "h200:8x8"]) == 2
    assert "pip install --no-deps jax-cuda12-plugin==" in capsys.readouterr().err


def test_bad_input_is_refused_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([RECIPE, "--target", "v9:4x4"]) == 2
    assert "unknown chip 'v9'" in capsys.readouterr().err
    assert main([RECIPE, "--target", "cpu:2", "--set", "batch_sise=8"]) == 2
    assert "batch_size" in capsys.readouterr().err


def test_a_mesh_that_the_devices_do_not_make_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([RECIPE, "--target", "cpu:3", *TINY, "partitioner.num_partitions=2"]) == 2
    assert "The mesh needs a multiple of fsdp × num_partitions" in capsys.readouterr().err
    assert main(["recipes.t0_eval", "--target", "cpu:4"]) == 2
    assert "recipes.t0_eval does not train a model" in capsys.readouterr().err


GIB = 2**30


@pytest.mark.parametrize(
    ("text", "platform", "devices", "memory"),
    [
        ("v3:16x16", "tpu", 512, 16 * GIB),
        ("v4:4x8x8", "tpu", 256, 32 * GIB),
        ("v5p:16x16x24", "tpu", 6144, 95 * GIB),
        ("tpu7x:4x4x4", "tpu", 128, 96 * GIB),
        ("h200:8x8", "cuda", 64, 141 * 10**9),
    ],
)
def test_targets(text: str, platform: str, devices: int, memory: int) -> None:
    target = parse_target(text)
    assert (target.platform, target.num_devices, target.memory) == (platform, devices, memory)
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v4", r"v4 has no slice \(missing\); expected one of 2x2x1, 2x2x2"),
        ("v4:4x8", r"v4 has no slice 4x8; .* Did you mean 4x8x8 or 4x4x8"),
        ("v5e:16x32", r"v5e has no slice 16x32; .* Did you mean 16x16"),
        ("v5:4x8x8", r"unknown chip 'v5'; expected one of v2, .* Did you mean v5p"),
        ("h200:64", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("h200:4x16", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("cpu:two", r"expected the number of CPUs, such as cpu:8"),
        ("cpu:0", r"expected the number of CPUs"),
    ],
)
def test_other_targets_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_target(text)


def test_devices_of_jax_are_recognized() -> None:
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "NVIDIA H200": "h200"}
    for kind, name in kinds.items():
        chip = chip_of(kind)
        assert chip is not None
        assert chip.name == name
    assert chip_of("cpu") is None


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("v4:2x2x2", {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}),
        ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
        ("v5e:2x2", {}),
    ],
)
def test_options_of_the_compiler(target: str, options: dict[str, object]) -> None:
    found = parse_target(target)
    assert found.chip is not None
    assert found.chip.topology_options(found.shape) == options
