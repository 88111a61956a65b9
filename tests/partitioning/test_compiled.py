"""Compiled programs are kept on this machine, and change nothing but the time that runs take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small

# Programs that compile faster than in a second are not kept by default.
ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_COMPILATION_CACHE_DIR": ""}


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("compiled/*/*-cache"))


@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    text, cache = small.write_text(tmp_path), tmp_path / "cache"

    def train(name: str, **environment: str) -> None:
        arguments = small.arguments(text, train_steps=3, model_dir=name)
        variables = {"MTF_CACHE": str(cache), **ALL, **environment}
        small.run_process(arguments, tmp_path, **variables)

    train("off", JAX_ENABLE_COMPILATION_CACHE="false")
    assert not (cache / "compiled").exists()
    train("cold")
    stored = kept(cache)
    assert any("train_step" in file.name for file in stored)
    [folder] = (cache / "compiled").iterdir()
    damaged = folder / "killed-cache"  # without a time of access, as after kill -9
    damaged.write_bytes(b"")
    train("warm")
    assert kept(cache) == stored
    for name in ("cold", "warm"):
        small.assert_same_end(tmp_path / name, tmp_path / "off", 3)


@pytest.mark.slow
def test_runs_of_a_sweep_compile_the_step_once(tmp_path: Path) -> None:
    text, cache = small.write_text(tmp_path), tmp_path / "cache"
    for seed, rate in enumerate((0.001, 0.01, 0.1)):
        settings = {"optimizer__learning_rate__base_learning_rate": rate, "random_seed": seed}
        arguments = small.arguments(text, train_steps=1, model_dir=f"run{seed}", **settings)
        small.run_process(arguments, tmp_path, MTF_CACHE=str(cache), **ALL)
        assert sum("train_step" in file.name for file in kept(cache)) == 1


@pytest.mark.slow
def test_a_run_needs_no_place_for_compiled_programs(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    (tmp_path / "file").touch()
    arguments = small.arguments(text, train_steps=1, model_dir="run")
    said = small.run_process(arguments, tmp_path, MTF_CACHE=f"{tmp_path}/file", **ALL)
    assert "Warning" not in said and small.steps(tmp_path / "run") == [1]
