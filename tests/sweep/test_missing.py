"""A sweep without Optuna."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import small


def test_a_sweep_without_optuna_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write_text(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    command = small.arguments("text.txt", model_dir=tmp_path / "sweep")
    said = small.run([*command, "--sweep", "random_seed=0,1"], tmp_path, status=2)
    assert "--sweep needs the package optuna, which is not installed" in said
    assert "run: pip install 'mtf-jax[optuna]'" in said
    assert not (tmp_path / "sweep").exists()
