"""`mtf.launch` installs the packages of this environment elsewhere, with the same versions."""

from __future__ import annotations

import importlib.metadata

import pytest

from mtf.errors import UserError
from mtf.launch.pinned import pinned_requirements


def test_the_versions_are_those_that_are_installed_here() -> None:
    lines = pinned_requirements({"tpu", "gcs"})
    found = dict(line.split("==") for line in lines if "==" in line)
    assert found["jax[tpu]"] == importlib.metadata.version("jax")
    for package in ("jaxlib", "flax", "tensorstore", "numpy", "fiddle"):
        assert found[package] == importlib.metadata.version(package)
    # What JAX needs on TPUs is not installed here; JAX says which version.
    assert found["libtpu"]
    assert any(line.startswith("gcsfs") for line in lines)
    assert not {"pytest", "ruff", "torch", "mtf-jax"} & found.keys()


def test_an_extra_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"mtf has no extra gsc. Did you mean gcs"):
        pinned_requirements({"gsc"})
