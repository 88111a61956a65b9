"""The project's files: license, citation, image, and the extras that messages and pages name."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import mtf
from mtf.evaluation.metrics import METRICS
from mtf.storage.errors import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
# The text that the Apache Software Foundation publishes as LICENSE-2.0.txt, as Debian ships it.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_license_and_the_citation() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PYPROJECT["project"]["license"] == citation["license"] == "Apache-2.0"
    assert str(citation["version"]) == mtf.__version__


def test_the_docker_image_gets_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    project = PYPROJECT["project"]
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], *packages}
    assert "*" in lines and {line[1:] for line in lines if line.startswith("!")} == needed
    python = re.search(r"^ARG PYTHON=(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert python is not None and python[1] in SpecifierSet(project["requires-python"])


EXTRAS = PYPROJECT["project"]["optional-dependencies"]
FILES = [
    ROOT / "README.md",
    *(file for folder in ("docs", "benchmarks") for file in (ROOT / folder).rglob("*.md")),
    *(
        file
        for folder in ("mtf", "recipes", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
    ),
]
NAMED = re.compile(r"(?:mtf-jax|'\.)\[([a-z0-9,-]+)\]|extra `([a-z0-9-]+)`")
# Modules whose name differs from that of their package.
DISTRIBUTIONS = {"gin": "gin-config", "rouge_score": "rouge-score", "yaml": "pyyaml"}


def packages(extra: str) -> set[str]:
    """The packages of an extra, with those of the extras that it names."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        if own := re.match(r"mtf-jax\[(.+?)\]", requirement):
            found.update(*map(packages, own[1].split(",")))
        else:
            found.add(re.split(r"[\[<>=]", requirement)[0])
    return found


def has(extra: str, module: str) -> bool:
    name = module.partition(".")[0]
    return DISTRIBUTIONS.get(name, name) in packages(extra)


def test_every_extra_that_is_named_exists() -> None:
    named = {
        (file.name, extra)
        for file in FILES
        for match in NAMED.finditer(file.read_text())
        for extra in (match[1] or match[2]).split(",")
    }
    assert {extra for _, extra in named} >= {"tasks", "seqio", "torch", "gcs"}
    assert [each for each in named if each[1] not in EXTRAS] == []


def needed() -> Iterator[tuple[str, str]]:
    """Modules that mtf imports from an extra, and the extra that the message names."""
    for file in (ROOT / "mtf").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            name = getattr(getattr(call, "func", None), "id", "")
            if not isinstance(call, ast.Call) or name not in ("import_extra", "check_extra"):
                continue
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            extra = given.get("extra", call.args[2] if len(call.args) > 2 else None)
            module = call.args[0]
            if isinstance(module, ast.Constant):
                yield module.value, "tasks" if extra is None else ast.literal_eval(extra)


@pytest.mark.parametrize(("module", "extra"), sorted(set(needed())))
def test_a_message_names_the_extra_of_the_package(module: str, extra: str) -> None:
    assert has(extra, module)


def test_metrics_and_stores_name_their_extras() -> None:
    assert all(has("eval", metric.module) for metric in METRICS.values() if metric.module)
    assert all(has(extra, package) for package, extra in PACKAGES.values())
    assert has("torch", "transformers") and has("torch", "torch")
    assert has("t5x", "seqio")
