"""Gin files, and the command that translates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gin.example import write_mesh, write_t5x
from tests.gin.helpers import Gin


@pytest.fixture(scope="session")
def t5x(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with t5x/ and its gin files."""
    return write_t5x(tmp_path_factory.mktemp("t5x_gin"))


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the gin files of Mesh TensorFlow's T5."""
    return write_mesh(tmp_path_factory.mktemp("mesh_gin"))


@pytest.fixture
def gin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Gin:
    """`python -m mtf gin` in an empty folder."""
    pytest.importorskip("gin", reason="gin-config is not installed: pip install 'mtf-jax[gin]'")
    monkeypatch.chdir(tmp_path)
    return Gin(capsys)
