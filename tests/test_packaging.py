"""The files that say what the project is and how it may be used."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import yaml

import mtf

ROOT = Path(__file__).resolve().parents[1]
# The text that the Apache Software Foundation publishes as LICENSE-2.0.txt, as Debian ships it.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_license_is_apache_2_0_everywhere() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["license"] == citation["license"] == "Apache-2.0"


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == mtf.__version__
