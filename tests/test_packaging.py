"""The files that say what the project is and how it may be used."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

import mtf

ROOT = Path(__file__).resolve().parents[1]
# The text that the Apache Software Foundation publishes as LICENSE-2.0.txt, as Debian ships it.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_license_is_apache_2_0_everywhere() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PYPROJECT["project"]["license"] == citation["license"] == "Apache-2.0"


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == mtf.__version__


def test_the_docker_image_gets_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    project = PYPROJECT["project"]
    packages = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    needed |= {pattern.removesuffix("*") for pattern in packages}
    assert "*" in lines and {line[1:] for line in lines if line.startswith("!")} == needed
    python = re.search(r"^ARG PYTHON=(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert python is not None and python[1] in SpecifierSet(project["requires-python"])
