"""`mtf doctor`: what its page shows, hides and finds."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from mtf.cli.doctor import main

SECRET = "s3cr3t-value"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a user whose servers do not answer."""
    for name, value in {
        "HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_TOKEN": SECRET,
        "MTF_CACHE": str(tmp_path / "cache"),
        "STORAGE_EMULATOR_HOST": f"http://name:{SECRET}@127.0.0.1:9",
        "AWS_PROFILE": "team",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "MY_PASSWORD": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(SECRET)
    return tmp_path


def rows(text: str, title: str) -> dict[str, str]:
    """The lines of a section: name → the rest."""
    section = next(each for each in text.split("\n\n") if each.startswith(f"{title}\n"))
    lines = [line.strip().partition("  ") for line in section.splitlines()[1:]]
    return {name: rest.strip() for name, _, rest in lines}


def test_a_page_without_training(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-train"]) == 0
    text = capsys.readouterr().out
    versions = rows(text, "versions")
    for name in ("jax", "flax", "optax", "orbax-checkpoint", "tensorstore", "grain"):
        assert versions[name] == importlib.metadata.version(name)
    assert rows(text, "devices")["jax"].startswith("1 × cpu (cpu)")
    variables = rows(text, "environment variables")
    assert variables["MTF_CACHE"] == "~/cache" and variables["AWS_PROFILE"] == "team"
    assert variables["HF_TOKEN"] == variables["AWS_SECRET_ACCESS_KEY"] == "set (not shown)"
    assert "MY_PASSWORD" not in variables
    answers = rows(text, "network")
    assert "refused" in answers["Hugging Face hub"] and "cannot be reached" in answers["gs://"]
    assert rows(text, "credentials")["~/.aws/credentials"] == "found"
    assert "training\n" not in text
    assert SECRET not in text and str(home) not in text


@pytest.mark.slow
def test_no_devices(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    assert main([]) == 1
    text = capsys.readouterr().out
    assert "no devices found: " in text and "abacus" in text
    assert "training\n" not in text


@pytest.mark.slow
def test_two_steps_of_training(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    trained = rows(capsys.readouterr().out, "training")
    assert trained == {"2 steps of recipes.pretrain_text": "works"}
